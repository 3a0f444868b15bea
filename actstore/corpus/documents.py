"""Documents and the corpora that hold them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from actstore.corpus.columns import Column, merge_kinds
from actstore.errors import CorpusError

Scalar = str | int | float | bool

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a corpus.

    Parameters
    ----------
    text
        The text. May be left out where ``input_ids`` is given.
    id
        A name for the document; its number in the corpus where none is given.
    metadata
        Labels that travel with the document: each key becomes a coordinate on ``sample``.
        Values are str, int, float or bool; None means missing.
    input_ids
        Token ids to run exactly as they are, with no special token added.

    Raises
    ------
    CorpusError
        If there is neither text nor ids, or one of them has the wrong type.
    """

    text: str | None = None
    id: str | None = None
    metadata: Mapping[str, Scalar | None] = field(default_factory=dict)
    input_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.input_ids is None:
            raise CorpusError("a document needs a text or input_ids; this one has neither")
        if self.text is not None:
            if not isinstance(self.text, str):
                raise CorpusError(f"a document's text is a str, not {type(self.text).__name__}")
            try:
                self.text.encode()
            except UnicodeEncodeError as error:
                raise CorpusError(
                    f"the text holds half of a surrogate pair at character {error.start}, "
                    "which no tokenizer can read; replace it"
                ) from None
        if self.id is not None and not isinstance(self.id, str):
            raise CorpusError(f"a document's id is a str, not {type(self.id).__name__}")
        if self.input_ids is not None:
            object.__setattr__(self, "input_ids", _checked_ids(self.input_ids))
        object.__setattr__(self, "metadata", _checked_metadata(self.metadata))


def _checked_metadata(metadata: Mapping[str, Scalar | None]) -> dict[str, Scalar | None]:
    """The metadata with numpy scalars as Python's, or an error that names what is no scalar."""
    checked: dict[str, Scalar | None] = {}
    for key, value in metadata.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if plain is not None and not isinstance(plain, Scalar):
            raise CorpusError(
                f"metadata {key!r} is a {type(value).__name__}; a coordinate holds str, int, "
                "float or bool"
            )
        if isinstance(plain, int) and not -(2**63) <= plain < 2**63:
            raise CorpusError(f"metadata {key!r} is {plain}, beyond 64 bits; keep it as text")
        checked[key] = plain
    return checked


def _checked_ids(values: Sequence[int]) -> tuple[int, ...]:
    """The ids as plain ints, or an error that names the first that is not a token id."""
    try:
        ids = tuple(values)
    except TypeError:
        raise CorpusError(f"input_ids is a sequence of ints, not {values!r}") from None
    checked = []
    for value in ids:
        try:
            number = value.__index__()
        except AttributeError:
            raise CorpusError(f"input_ids holds {value!r}; token ids are ints") from None
        if isinstance(value, bool) or not 0 <= number < 2**31:
            raise CorpusError(f"input_ids holds {value!r}; token ids are ints in 0…2³¹−1")
        checked.append(number)
    return tuple(checked)


@dataclass(frozen=True)
class Survey:
    """What one pass over a corpus tells.

    Attributes
    ----------
    fingerprint
        SHA-256 over ids, texts, metadata and input_ids of all documents, in order.
    n_documents
        How many documents there are.
    columns
        The metadata columns, in the order in which the keys were met.
    """

    fingerprint: str
    n_documents: int
    columns: tuple[Column, ...]


class Corpus:
    """Documents under a name; may be iterated any number of times.

    Parameters
    ----------
    name
        The label of the corpus in a store: letters, digits, ``.``, ``_`` and ``-``.
    documents
        Called for every pass, gives the documents in order.

    Raises
    ------
    CorpusError
        If the name cannot be a label.
    """

    def __init__(self, name: str, documents: Callable[[], Iterator[Document]]) -> None:
        if not _LABEL.fullmatch(name):
            raise CorpusError(
                f"corpus name {name!r}: a name starts with a letter or digit and holds only "
                "letters, digits, '.', '_' and '-'"
            )
        self.name = name
        self._documents = documents

    def __iter__(self) -> Iterator[Document]:
        return self._documents()

    def __repr__(self) -> str:
        return f"Corpus({self.name!r})"

    def fingerprint(self) -> str:
        """SHA-256 in hex over ids, texts, metadata and input_ids, in the order of documents."""
        return self.survey.fingerprint

    @cached_property
    def survey(self) -> Survey:
        """Fingerprint, number of documents and metadata columns, from one streaming pass.

        Raises
        ------
        CorpusError
            If the corpus is empty, or a metadata key or value cannot become a coordinate.
        """
        return survey_documents(self, self.name)


class Fingerprint:
    """SHA-256 of documents, fed one at a time."""

    def __init__(self) -> None:
        self.n_documents = 0
        self._digest = hashlib.sha256()

    def update(self, document: Document) -> None:
        record = {
            "id": document_id(document, self.n_documents),
            "input_ids": document.input_ids,
            "metadata": dict(document.metadata),
            "text": document.text,
        }
        line = json.dumps(record, sort_keys=True, separators=(",", ":"))
        self._digest.update(line.encode() + b"\n")
        self.n_documents += 1

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def document_id(document: Document, number: int) -> str:
    """The document's own id, or else its number in the corpus."""
    return str(number) if document.id is None else document.id


def survey_documents(documents: Iterator[Document] | Corpus, name: str) -> Survey:
    """One pass over documents: see :class:`Survey`."""
    fingerprint = Fingerprint()
    kinds: dict[str, type] = {}
    seen: dict[str, int] = {}
    for document in documents:
        number = fingerprint.n_documents
        for key, value in document.metadata.items():
            seen.setdefault(key, 0)
            if value is not None:
                kinds[key] = merge_kinds(key, kinds.get(key), value, f"{name}, document {number}")
                seen[key] += 1
        fingerprint.update(document)
    total = fingerprint.n_documents
    if total == 0:
        raise CorpusError(f"corpus {name!r} is empty: at least one document is needed")
    for key, count in seen.items():
        if count == 0:
            raise CorpusError(
                f"corpus {name!r}: metadata {key!r} has no value in any document; check the "
                "field's name, or leave it out"
            )
    columns = tuple(Column(key, kinds[key], complete=count == total) for key, count in seen.items())
    return Survey(fingerprint.hexdigest(), total, columns)


def safe_name(text: str) -> str:
    """A corpus name made from a file name: what a label cannot hold becomes ``-``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-") or "corpus"
