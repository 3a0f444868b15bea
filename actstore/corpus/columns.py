"""Metadata of documents as columns: one value a document, one dtype a key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actstore.errors import CorpusError

_COORDINATES = (
    *("layer", "block", "sample", "feature", "item", "document", "document_id", "position"),
    *("document_position", "sequence", "token", "token_id", "target_id"),
)
_MEMBERS = (
    *("resid", "final_norm", "attn", "mlp", "resid_mid", "ln1", "ln2", "embed"),
    *("attn.out", "mlp.in", "mlp.out"),
    *("sequences", "journal", "cache"),
)
RESERVED = frozenset(_COORDINATES + _MEMBERS)
"""Names that a metadata key may not take, since a run uses them itself."""

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Column:
    """One metadata key over a whole corpus.

    A document that lacks the key (or has None) gets ``""`` in a column of text. In a column of
    numbers or truth values it gets NaN, and the column is float64 then.

    Attributes
    ----------
    name
        The key.
    kind
        The type of its values: str, bool, int or float.
    complete
        Whether every document has a value.
    """

    name: str
    kind: type
    complete: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """object (of str), bool, int64 or float64."""
        if self.kind is str:
            return np.dtype(object)
        if self.kind is float or not self.complete:
            return np.dtype(np.float64)
        return np.dtype(np.bool_ if self.kind is bool else np.int64)

    def values(self, metadata: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """The column for some documents, shape (len(metadata),)."""
        missing = "" if self.kind is str else np.nan
        out = np.empty(len(metadata), dtype=self.dtype)
        for row, record in enumerate(metadata):
            value = record.get(self.name)
            out[row] = missing if value is None else value
        return out


def merge_kinds(key: str, known: type | None, value: object, where: str) -> type:
    """The type of a column after one more value.

    Parameters
    ----------
    key, value
        The metadata entry; ``value`` is a str, bool, int or float.
    known
        The column's type so far.
    where
        Names the document in errors.

    Raises
    ------
    CorpusError
        If the key is reserved or no array name, or text and numbers (or truth values and
        numbers) are mixed under one key.
    """
    if known is None:
        _check_key(key, where)
    kind = type(value)
    if known is None or known is kind:
        return kind
    if {known, kind} == {int, float}:
        return float
    raise CorpusError(
        f"{where}: metadata {key!r} is {value!r} ({kind.__name__}), but earlier documents have "
        f"{known.__name__}; give the key one type in the whole corpus"
    )


def _check_key(key: Any, where: str) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise CorpusError(
            f"{where}: metadata key {key!r} cannot name a coordinate; use a letter, then letters, "
            "digits, '_', '.' or '-'"
        )
    if key in RESERVED:
        raise CorpusError(
            f"{where}: metadata key {key!r} is a name that the store uses itself; rename the "
            "field, or list the fields to keep with metadata=[...]"
        )
