"""Corpora out of files, folders, datasets and iterables."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from actstore.corpus.documents import Corpus, Document, Scalar, safe_name
from actstore.corpus.files import json_lines, parquet_rows, text_files, text_lines
from actstore.errors import CorpusError

_COMPRESSED = (".gz", ".bz2", ".xz")
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_REFUSED = (".csv", ".tsv", ".arrow", ".zip", ".tar", ".zst")


def read_corpus(
    source: str | os.PathLike[str] | Iterable[Any] | Corpus,
    *,
    name: str | None = None,
    text_field: str = "text",
    id_field: str = "id",
    metadata: Sequence[str] | None = None,
    limit: int | None = None,
) -> Corpus:
    """A corpus from a file, a folder, a dataset or anything that gives texts.

    Parameters
    ----------
    source
        * a text file: every line that is not blank is a document;
        * ``.jsonl``: every line is an object with ``text_field`` (or ``input_ids``);
        * ``.parquet``: every row likewise (needs pyarrow);
        * a folder: every ``.txt`` file below it is a document, its relative path the id;
        * a ``datasets.Dataset``, or an iterable of str, mappings and :class:`Document`;
        * a :class:`Corpus`.

        Text and JSON lines may be compressed (``.gz``, ``.bz2``, ``.xz``) and are UTF-8.
        A one-shot iterator is written to a temporary file, since a corpus is read twice.
    name
        The corpus's label. Default: the file's name without its suffixes, or ``"corpus"``.
    text_field, id_field
        The fields of a record that hold text and id. The id may be missing.
    metadata
        The other fields to keep as metadata. Default: all whose value is a scalar. Dates become
        ISO text.
    limit
        Keep the first documents only.

    Raises
    ------
    CorpusError
        If the source is not there, cannot be read, or is empty. Messages name the line.

    Examples
    --------
    >>> corpus = read_corpus(["First text.", {"text": "Second.", "genre": "news"}], name="two")
    >>> [document.metadata for document in corpus]
    [{}, {'genre': 'news'}]
    """
    if limit is not None and limit < 1:
        raise CorpusError(f"limit={limit}: at least one document is needed")
    to_document = partial(
        record_to_document, text_field=text_field, id_field=id_field, metadata=metadata
    )
    documents: Callable[[], Iterator[Document]]
    if isinstance(source, Corpus):
        if name is None and limit is None:
            return source
        default, documents = source.name, source.__iter__
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        default, documents = _stem(path), _path_reader(path, to_document)
    else:
        default, documents = "corpus", _iterable_reader(source, to_document)
    corpus = Corpus(default if name is None else name, partial(_first, documents, limit))
    if next(iter(corpus), None) is None:
        raise CorpusError(f"corpus {corpus.name!r} is empty: {_describe(source)} has no document")
    return corpus


def record_to_document(
    record: Any,
    where: str,
    *,
    text_field: str = "text",
    id_field: str = "id",
    metadata: Sequence[str] | None = None,
) -> Document:
    """A document from a str, a mapping or a :class:`Document`; ``where`` names it in errors."""
    if isinstance(record, Document):
        return record
    try:
        if isinstance(record, str):
            return Document(record)
        if not isinstance(record, Mapping):
            raise CorpusError(
                f"expected a text, a record with fields or a Document, got {type(record).__name__}"
            )
        return _from_fields(record, text_field, id_field, metadata)
    except CorpusError as error:
        raise CorpusError(f"{where}: {error}") from None


def _from_fields(
    record: Mapping[str, Any], text_field: str, id_field: str, metadata: Sequence[str] | None
) -> Document:
    text, ids, own_id = record.get(text_field), record.get("input_ids"), record.get(id_field)
    if text is None and ids is None:
        fields = ", ".join(map(repr, record)) or "none"
        if text_field in record:
            raise CorpusError(f"field {text_field!r} is empty (null), expected a text")
        raise CorpusError(
            f"field {text_field!r} asked for, but the record has {fields}; name the field that "
            "holds the text with text_field="
        )
    used = {text_field, id_field, "input_ids"}
    keep = (key for key in record if key not in used) if metadata is None else metadata
    scalars = {}
    for key in keep:
        value = record.get(key)
        if isinstance(value, datetime.date | datetime.time):
            value = value.isoformat()
        if metadata is not None or isinstance(value, Scalar | np.generic):
            scalars[key] = value
        elif value is not None:
            warnings.warn(
                f"field {key!r} is a {type(value).__name__}, not a text, number or truth value: it "
                "is left out of the coordinates",
                stacklevel=2,
            )
    return Document(
        text=text,
        id=None if own_id is None else str(own_id),
        metadata=scalars,
        input_ids=ids,
    )


def _path_reader(
    path: Path, to_document: Callable[[Any, str], Document]
) -> Callable[[], Iterator[Document]]:
    if not path.exists():
        raise CorpusError(f"corpus {str(path)!r}: no such file or folder (texts go in a list)")
    if path.is_dir():
        return partial(text_files, path)
    suffix = _suffix(path)
    if suffix in _REFUSED:
        raise CorpusError(
            f"corpus {str(path)!r}: {suffix} is not read; use text, JSON lines or parquet, or "
            "pass datasets.load_dataset(...)"
        )
    rows = (
        parquet_rows
        if suffix == ".parquet"
        else json_lines
        if suffix in _JSON_LINES
        else text_lines
    )

    def read() -> Iterator[Document]:
        for where, row in rows(path):
            yield to_document(row, where)

    return read


def _iterable_reader(
    source: Any, to_document: Callable[[Any, str], Document]
) -> Callable[[], Iterator[Document]]:
    if isinstance(source, Mapping):
        raise CorpusError(
            f"a mapping with keys {', '.join(map(repr, islice(source, 8)))} is not a corpus; pass "
            "one split of a DatasetDict, or a list of records"
        )
    try:
        iterator = iter(source)
    except TypeError:
        raise CorpusError(
            f"a corpus is a path, a dataset or an iterable of texts, not {type(source).__name__}"
        ) from None

    def read(records: Iterable[Any]) -> Iterator[Document]:
        for number, record in enumerate(records):
            yield to_document(record, f"document {number}")

    if iterator is source:
        return _spooled(read(iterator))
    return lambda: read(source)


def _spooled(documents: Iterator[Document]) -> Callable[[], Iterator[Document]]:
    """Writes a one-shot iterator to an unnamed temporary file; gives its reader."""
    file = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - lives as long as the corpus
    for document in documents:
        record = (document.text, document.id, dict(document.metadata), document.input_ids)
        file.write(json.dumps(record).encode() + b"\n")
    file.flush()

    def read() -> Iterator[Document]:
        offset, size = 0, os.fstat(file.fileno()).st_size
        while offset < size:
            file.seek(offset)
            line = file.readline()
            offset += len(line)
            yield Document(*json.loads(line))

    return read


def _first(documents: Callable[[], Iterator[Document]], limit: int | None) -> Iterator[Document]:
    return islice(documents(), limit)


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _stem(path: Path) -> str:
    name = path.resolve().name
    if not path.is_dir():
        if Path(name).suffix.lower() in _COMPRESSED:
            name = Path(name).stem
        name = Path(name).stem
    return safe_name(name)


def _describe(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return repr(os.fspath(source))
    return f"the {type(source).__name__}"
