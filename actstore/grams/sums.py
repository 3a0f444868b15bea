"""The Gram of all rows from those of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram


def sum_of(parts: Sequence[Gram], provenance: Mapping[str, Any], run: RowSource | None) -> Gram:
    """The Gram of all the rows of parts with one shift, which it keeps."""
    first = parts[0]
    blocks = {pair: block.copy() for pair, block in first.blocks.items()}
    total = [values.copy() for values in first.total]
    for part in parts[1:]:
        for pair, block in blocks.items():
            block += part.blocks[pair]
        for mine, its in zip(total, part.total, strict=True):
            mine += its
    n = sum(part.n for part in parts)
    return Gram(
        first.columns, n, first.shift, total, blocks, provenance=provenance, run=run, parts=parts
    )
