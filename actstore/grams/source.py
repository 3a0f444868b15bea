"""What a Gram needs to know of where rows come from: a stored Run is one such place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class RowSource(Protocol):
    """Rows of activations that can be read block by block, as often as needed.

    `actstore.Run` is one. Rows have an order that does not change between readings.
    """

    @property
    def model(self) -> str:
        """Label of the model."""

    @property
    def corpus(self) -> str:
        """Label of the corpus."""

    @property
    def sites(self) -> Mapping[str, Sequence[int]]:
        """Sites in view and their layers, increasing."""

    @property
    def dtype(self) -> str:
        """Stored number format: float16, float32, bfloat16 (read as float32)."""

    @property
    def n_samples(self) -> int:
        """Number of rows in view."""

    def width(self, site: str) -> int:
        """Number of features of a site."""

    def row_blocks(self, max_rows: int) -> Sequence[Any]:
        """The rows in view, in order, cut in blocks of at most `max_rows`; each has `.out`, its
        slice of the rows in view."""

    def read(self, site: str, layer: int, block: Any, out: np.ndarray | None = None) -> np.ndarray:
        """(rows, width) float16 or float32 of one block, in `out` where that is given."""

    def key(self, sites: Mapping[str, Sequence[int]] | None = None) -> str:
        """Digest of everything that determines the numbers in view, or those of some layers."""

    def info(self) -> Mapping[str, Any]:
        """Provenance."""
