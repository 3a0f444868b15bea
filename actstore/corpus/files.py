"""Readers of text, JSON lines, parquet and folders: (where, record) pairs, streaming."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from actstore.corpus.documents import Document
from actstore.errors import CorpusError, MissingDependencyError

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BYTE_ORDER_MARK = "\ufeff"


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a UTF-8 text file that are not blank, without their line ends."""
    for number, line in _lines(path):
        if line.strip():
            yield f"{path}, line {number}", line


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON lines file, one a line; blank lines are passed over."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusError(
                f"{where}: not JSON ({error.msg} at column {error.colno}); every line must be one "
                "object"
            ) from None
        if not isinstance(record, dict):
            raise CorpusError(
                f'{where}: expected an object like {{"text": …}}, got a {type(record).__name__}'
            )
        yield where, record


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a parquet file as dicts, one record batch in memory at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(
            f"{path}: reading parquet needs pyarrow; pip install pyarrow"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            row = 0
            for batch in file.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    yield f"{path}, row {row}", record
                    row += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: not a readable parquet file ({error})") from None


def text_files(folder: Path) -> Iterator[Document]:
    """Every ``.txt`` file below a folder as one document, in the order of relative paths."""
    paths = sorted(
        (path.relative_to(folder).as_posix(), path)
        for path in folder.rglob("*")
        if path.suffix.lower() == ".txt" and path.is_file()
    )
    if not paths:
        raise CorpusError(f"corpus {str(folder)!r}: the folder holds no .txt file")
    for relative, path in paths:
        text = "\n".join(line for _, line in _lines(path))
        yield Document(text=text, id=relative)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1), decoded; only line feeds end a line."""
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, 1):
                line = raw.decode().rstrip("\r\n")
                yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}, line {number}: byte 0x{error.object[error.start]:02x} at {error.start} is "
            "not UTF-8; convert the file (iconv -f … -t utf-8)"
        ) from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CorpusError(f"{path}: cannot be read after line {number} ({reason})") from None


def _open(path: Path) -> IO[bytes]:
    opener = _OPENERS.get(path.suffix.lower(), open)
    file: IO[bytes] = opener(path, "rb")
    return file
