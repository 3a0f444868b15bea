"""Sentences out of the texts inside gensim's wheel, as JSON lines."""

from __future__ import annotations

import bz2
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from examples.sentences import sentences
from examples.wikitext import articles, paragraphs

_DATA = "gensim/test/test_data"
_DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def wikipedia_sentences(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """(article's title, sentence) of the articles in the Wikipedia dump."""
    with bz2.open(io.BytesIO(archive.read(f"{_DATA}/{_DUMP}"))) as dump:
        for title, wikitext in articles(dump):
            for paragraph in paragraphs(wikitext):
                for sentence in sentences(paragraph):
                    yield title, sentence


def news_sentences(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """(article's label, sentence) of the Lee corpus, one article a line."""
    for part, name in (("background", "lee_background.cor"), ("similarity", "lee.cor")):
        lines = archive.read(f"{_DATA}/{name}").decode("latin-1").splitlines()
        for number, line in enumerate(lines, 1):
            for sentence in sentences(line):
                yield f"{part} {number}", sentence


def write_sentences(pairs: Iterable[tuple[str, str]], path: Path) -> None:
    """JSON lines with ``text``, ``article`` and ``id``; a sentence that was there is left out."""
    seen: set[str] = set()
    numbers: Counter[str] = Counter()
    with path.open("w", encoding="utf-8") as file:
        for article, text in pairs:
            if text in seen:
                continue
            seen.add(text)
            numbers[article] += 1
            record = {"text": text, "article": article, "id": f"{article} #{numbers[article]}"}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
