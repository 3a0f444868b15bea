"""Prose out of a MediaWiki dump: articles, then paragraphs without markup.

What cannot be turned into plain words (formulas, unknown templates, superscripts) leaves the
character :data:`GAP`, so that a sentence around it can be recognised and dropped.
"""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from typing import IO

GAP = "\ufffc"
"""Stands where something was taken out that a sentence cannot do without."""

_ELEMENTS = "math|gallery|timeline|table|code|pre|source|syntaxhighlight|score|imagemap|blockquote"
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_REFERENCE = re.compile(r"<ref\b[^>]*/>|<ref\b[^>]*>.*?</ref\s*>", re.DOTALL | re.IGNORECASE)
_ELEMENT = re.compile(rf"<({_ELEMENTS})\b[^>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_SUPERSCRIPT = re.compile(r"<sup\b[^>]*>.*?</sup\s*>", re.DOTALL | re.IGNORECASE)
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_TEMPLATE = re.compile(r"\{\{([^{}]*)\}\}")
_TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_WEB_LINK = re.compile(r"\[(?:https?:|ftp:)?//[^\s\]]+(?:\s+([^\]]*))?\]")
_PREFIX = re.compile(r"\s*(?:file|image|category|media|[a-z]{2,3}(?:-[a-z-]+)?)\s*:", re.IGNORECASE)
_HEADING = re.compile(r"(={2,6})\s*(.*?)\s*\1\s*")
_EMPTY_BRACKETS = re.compile(r"\(\s*(?:(?:or|and|[;,:/–-])\s*)*\)")

_SILENT = re.compile(
    r"(?:cit(?:e|ation)\b|sfn|harv|refn?\b|efn|r\b|rp\b|page needed|clarify|who\b|when\b|by whom"
    r"|dubious|dead link|fact\b|cn\b|verify|which\b|according to whom|vague|why\b|full citation"
    r"|ipa|pron\b|respell|audio|coord|anchor|main\b|see also|further|about\b|redirect|use\b"
    r"|pp\b|pp-|infobox|portal|clear\b|-\b|not a typo|disputed|better source|inflation-fn"
    r"|update\b|original research|specify|note\b|note label|notetag|failed verification"
    r"|unreferenced|primary source|unreliable|self-published)",
    re.IGNORECASE,
)
"""Templates that add nothing to a sentence: citations, notes to editors, pronunciations."""

_RANGES = {"to": "to", "and": "and", "-": "to", "–": "to", "by": "by", "or": "or"}
_UNITS = {
    **{unit: unit for unit in ("km", "m", "cm", "mm", "mi", "ft", "kg", "g", "lb", "t", "ha")},
    **{unit: unit for unit in ("mph", "km/h", "L", "acres", "miles", "nmi")},
    **{"C": "°C", "F": "°F", "acre": "acres", "in": "inches", "ton": "tons"},  # noqa: PIE800
    **{"sqkm": "square km", "km2": "square km", "sqmi": "square miles"},  # noqa: PIE800
}

_END_SECTIONS = frozenset(
    (
        *("see also", "references", "external links", "further reading", "notes", "footnotes"),
        *("notes and references", "explanatory notes", "citations", "works cited", "sources"),
        *("bibliography", "works", "selected works", "list of works", "publications"),
        *("filmography", "discography", "gallery", "in popular culture"),
    )
)
"""Sections without running text."""


def articles(dump: IO[bytes]) -> Iterator[tuple[str, str]]:
    """(title, wikitext) of every article in a MediaWiki XML dump; no redirects."""
    for _, element in ElementTree.iterparse(dump):
        if not element.tag.endswith("}page"):
            continue
        title = element.findtext("{*}title", "")
        text = element.findtext("{*}revision/{*}text", "")
        if element.findtext("{*}ns") == "0" and element.find("{*}redirect") is None:
            yield title, text
        element.clear()


def paragraphs(wikitext: str) -> Iterator[str]:
    """The paragraphs of an article's running text, on one line each, without markup.

    Lists, tables, headings, captions, and the sections of references are left out.
    """
    text = _COMMENT.sub("", wikitext)
    text = _REFERENCE.sub("", text)
    text = _ELEMENT.sub(GAP, text)
    text = _until_stable(_TEMPLATE, _template, text)
    text = _until_stable(_TABLE, lambda match: "\n", text)
    text = _WEB_LINK.sub(lambda match: match[1] or GAP, text)
    text = _until_stable(_LINK, _link, text)
    text = _SUPERSCRIPT.sub(GAP, text)
    text = _TAG.sub("", _BREAK.sub(" ", text))
    text = re.sub(r"'{2,}", "", html.unescape(text)).replace("\u00a0", " ")
    hidden_below = 7
    for line in text.split("\n"):
        if heading := _HEADING.fullmatch(line):
            level = len(heading[1])
            if level <= hidden_below:
                hidden_below = level if heading[2].lower() in _END_SECTIONS else 7
        elif hidden_below == 7 and line and line[0] not in "*#:;|!{} \t":
            yield _tidy(line)


def _tidy(line: str) -> str:
    """Closes the gaps that taken-out notes leave in punctuation."""
    line = _EMPTY_BRACKETS.sub("", line)
    line = re.sub(r"\(\s*(?:[;,]\s*)*", "(", line)
    line = re.sub(r"\s+", " ", line)
    return re.sub(r" ([,.;:!?)])", r"\1", line).strip()


def _until_stable(
    pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], text: str
) -> str:
    """Replaces from the inside out, as long as something nested is left."""
    while True:
        shorter = pattern.sub(replace, text)
        if shorter == text:
            return text
        text = shorter


def _template(match: re.Match[str]) -> str:
    name, *arguments = (part.strip() for part in match[1].split("|"))
    plain = [argument for argument in arguments if "=" not in argument]
    kind = name.lower()
    if kind in ("convert", "cvt"):
        return _measure(plain)
    if kind in ("lang", "transl") and len(plain) >= 2:
        return plain[-1]
    if kind.startswith("lang-") and len(plain) == 1:
        return GAP
    if kind in ("nowrap", "nobr", "smallcaps", "sc", "em", "strong") and len(plain) == 1:
        return plain[0]
    if kind in ("nbsp", "spaces"):
        return " "
    if kind in ("ndash", "spaced ndash", "snd", "spnd"):
        return " – "
    if kind in ("mdash", "spaced mdash"):
        return " — "
    return "" if _SILENT.match(name) else GAP


def _measure(arguments: list[str]) -> str:
    """``12|km|mi`` → ``12 km``; ``12|to|15|km`` → ``12 to 15 km``."""
    numbers, unit = arguments[:1], arguments[1:2]
    if len(arguments) >= 4 and arguments[1] in _RANGES:
        numbers, unit = arguments[:3], arguments[3:4]
        numbers[1] = _RANGES[numbers[1]]
    known = _UNITS.get("".join(unit))
    if known is None or not all(re.fullmatch(r"[\d,.]+", number) for number in numbers[::2]):
        return GAP
    return f"{' '.join(numbers)} {known}"


def _link(match: re.Match[str]) -> str:
    target, *labels = match[1].split("|")
    if _PREFIX.match(target):
        return ""
    return labels[-1] if labels and labels[-1].strip() else target.lstrip(":").split("#")[0]
