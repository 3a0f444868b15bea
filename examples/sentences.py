"""Running text to sentences of plain prose."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BOUNDARY = re.compile(r"(?<=[.!?])[\"”’')]*\s+(?=[\"“‘'(]?[A-Z0-9])")
_TITLES = "mr mrs ms dr prof st mt ft gen gov sen rep lt col capt cmdr sgt maj rev hon jr sr"
_MONTHS = "jan feb mar apr jun jul aug sep sept oct nov dec"
_OTHERS = (
    "no nos vol vols pp fig figs ed eds vs etc al approx ca cf e.g i.e inc ltd co corp dept univ "
    "assn bros ave blvd est trans op cit ch viz"
)
_ABBREVIATIONS = frozenset(f"{_TITLES} {_MONTHS} {_OTHERS}".split())
_LAST_WORD = re.compile(r"([A-Za-z][A-Za-z.]*)\.$")
_PROSE = re.compile(r"[\"“‘']?[A-Z][^\[\]{}|<>=\\\ufffc_*#~^←→]*[.!?][\"”’']?")
_DEBRIS = re.compile(
    r"https?:|www\.|''|,,|\.\.[^.]|;;|\( |\(\)|[,;(]\s*[.;:)]|\bthumb\b|\bISBN\b| [,;:.]"
    r"|[a-z][.!?][A-Z]"
)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a paragraph that are plain prose, in order.

    A sentence has 5 to 60 words, starts with a capital letter, ends in ``.``, ``!`` or ``?``, and
    has matching brackets and quotation marks, Latin letters, and no leftovers of markup.
    """
    for sentence in _split(text):
        if _is_prose(sentence):
            yield sentence


def _split(text: str) -> Iterator[str]:
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        end = boundary.end()
        closing = len(boundary[0].rstrip())
        piece = text[start : boundary.start() + closing]
        if _is_abbreviation(text[start : boundary.start()]):
            continue
        yield piece.strip()
        start = end
    yield text[start:].strip()


def _is_abbreviation(piece: str) -> bool:
    """Whether the full stop at the end belongs to its word: ``Dr.``, ``J.``, ``U.S.``"""
    word = _LAST_WORD.search(piece)
    if word is None:
        return False
    stem = word[1]
    return len(stem) == 1 or stem.lower() in _ABBREVIATIONS or "." in stem


def _is_prose(sentence: str) -> bool:
    words = sentence.split()
    if not 5 <= len(words) <= 60 or not _PROSE.fullmatch(sentence) or _DEBRIS.search(sentence):
        return False
    letters = sum(character.isalpha() for character in sentence)
    visible = sum(map(len, words))
    return (
        letters >= 0.8 * visible
        and sum(word[0].islower() for word in words) >= 0.35 * len(words)
        and all(not c.isalpha() or c < "\u0250" for c in sentence)
        and sentence.count("(") == sentence.count(")")
        and sentence.count('"') % 2 == 0
        and sentence.count("“") == sentence.count("”")
        and all(len(word) <= 30 for word in words)
    )
