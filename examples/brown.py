"""Plain sentences out of the tagged Brown corpus, with the genre of each text."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from examples.wheels import AssetError

GENRES = {
    "a": "press: reportage",
    "b": "press: editorial",
    "c": "press: reviews",
    "d": "religion",
    "e": "skill and hobbies",
    "f": "popular lore",
    "g": "belles-lettres",
    "h": "government",
    "j": "learned",
    "k": "fiction: general",
    "l": "fiction: mystery",
    "m": "fiction: science",
    "n": "fiction: adventure",
    "p": "fiction: romance",
    "r": "humor",
}
"""By the second letter of a text's name, as the corpus's own table of contents has them."""

_NAME = re.compile(r"package/(c([a-r])\d\d)")
_BEFORE = re.compile(r" ([.,;:?!)\]}%]|''(?= |$))")
_AFTER = re.compile(r"([(\[{$]|``) ")
_TWICE = re.compile(r"([.?!;:]) (?=\1)")


def plain(tagged: str) -> str:
    """The text of one tagged sentence, with the spaces that print has.

    Examples
    --------
    >>> plain("``/`` No/rb ,/, ''/'' he/pps said/vbd ?/. ?/.")
    '"No," he said?'
    """
    words = [word.rpartition("/")[0] for word in tagged.split()]
    text = " ".join(word for word in words if word)
    # The corpus has ? ! ; and : twice where they end a clause.
    text = _TWICE.sub("", text)
    text = _BEFORE.sub(r"\1", _BEFORE.sub(r"\1", text))
    text = _AFTER.sub(r"\1", text)
    return text.replace("``", '"').replace("''", '"')


def sentences(archive: tarfile.TarFile) -> Iterator[tuple[str, str, str]]:
    """(genre, text's name, sentence) of the 500 texts, in order.

    Raises
    ------
    AssetError
        The archive holds another number of texts.
    """
    found = sorted(
        (match[1], match[2], member)
        for member in archive.getmembers()
        if (match := _NAME.fullmatch(member.name))
    )
    if len(found) != 500:
        raise AssetError(f"the Brown corpus has 500 texts, but {len(found)} were found")
    for name, letter, member in found:
        file = archive.extractfile(member)
        assert file is not None
        for line in file.read().decode("ascii").splitlines():
            if text := plain(line):
                yield GENRES[letter], name, text


def write(archive: tarfile.TarFile, path: Path) -> None:
    """JSON lines with ``text``, ``genre``, ``article`` (the text's name) and ``id``; sentences of
    fewer than five words, mostly headings, and those that were there before are left out."""
    seen: set[str] = set()
    numbers: Counter[str] = Counter()
    with path.open("w", encoding="utf-8") as file:
        for genre, article, text in sentences(archive):
            if text in seen or len(text.split()) < 5:
                continue
            seen.add(text)
            numbers[article] += 1
            record = {"text": text, "genre": genre, "article": article}
            file.write(json.dumps({**record, "id": f"{article} #{numbers[article]}"}) + "\n")
