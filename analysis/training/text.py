"""Text as one row of tokens, and batches of windows out of it that are known by their number."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.corpus import read_corpus
from actstore.corpus.tokens import Encoder
from actstore.errors import AnalysisError


def token_stream(
    tokenizer: Any, documents: Any, bos: str = "tokenizer"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All documents as one row of tokens, and the prefix that stands before each in it.

    Parameters
    ----------
    tokenizer : transformers tokenizer, or None for documents that bring their ids
    documents : as for `actstore.read_corpus`
    bos : str
        As for `actstore.extract`.
    """
    encoded = Encoder(tokenizer, bos, None).encode(list(read_corpus(documents)))
    longest = max(encoded, key=lambda one: one.prefix)
    rows = [one.ids[: len(one.ids) - one.suffix] for one in encoded]
    return np.concatenate(rows).astype(np.int64), longest.ids[: longest.prefix].astype(np.int64)


@dataclass(frozen=True)
class Batches:
    """Windows of equal length out of a text, a batch for each step, drawn from (seed, epoch).

    Parameters
    ----------
    ids : (n_tokens,) int64
        The text, as one row of tokens.
    context : int
        Tokens of a window.
    size : int
        Windows of a batch.
    seed : int
    prefix : (n,) int64
        Stands in front of each window, as part of its `context`.

    Raises
    ------
    AnalysisError
        The text is shorter than a batch.
    """

    ids: NDArray[np.int64]
    context: int
    size: int
    seed: int
    prefix: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _orders: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.room < 1 or self.context < 2 or self.size < 1 or self.per_epoch < 1:
            raise AnalysisError(
                f"{len(self.ids):,} tokens of text for batches of {self.size} windows of "
                f"{self.context} tokens; give more text, or smaller batches"
            )

    @property
    def room(self) -> int:
        """Tokens of text in a window."""
        return self.context - len(self.prefix)

    @property
    def per_epoch(self) -> int:
        """Batches in one pass over the text; what does not fill one is left out of that pass."""
        return max(0, len(self.ids) // self.room) // self.size

    def fingerprint(self) -> str:
        """SHA-256 of the text and how it is cut."""
        digest = hashlib.sha256(repr((self.context, self.size, self.seed)).encode())
        digest.update(self.prefix.tobytes())
        digest.update(self.ids.tobytes())
        return digest.hexdigest()

    def __call__(self, step: int) -> torch.Tensor:
        """(size, context) int64 ids of a step. Each epoch has its own shuffle, and its own shift
        of where windows begin."""
        epoch, place = divmod(step, self.per_epoch)
        generator = np.random.default_rng([self.seed, epoch])
        windows = self.per_epoch * self.size
        shift = int(generator.integers(len(self.ids) - windows * self.room + 1))
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = generator.permutation(windows)
        chosen = self._orders[epoch][place * self.size : (place + 1) * self.size]
        starts = shift + chosen * self.room
        text = self.ids[starts[:, None] + np.arange(self.room)]
        before = np.broadcast_to(self.prefix, (self.size, len(self.prefix)))
        return torch.from_numpy(np.concatenate([before, text], axis=1))
