"""Rows to measure on: a store of made-up activations, and rows made as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import actstore
from actstore.store import create_run

SHAPES = {"768": (13, 768, 12_000), "1024": (25, 1024, 10_000), "576": (31, 576, 12_000)}
"""Layers, width and rows: of GPT-2, of GPT-2 medium and BERT-large, and of SmolLM2-135M."""


@dataclass(frozen=True)
class _Site:
    dim: str
    size: int
    width: int
    module: str = ""


def write_stream(
    path: Path, layers: int, width: int, rows: int, dtype: str, seed: int = 0
) -> actstore.Run:
    """A store of made-up activations that resemble a residual stream: each layer adds to the one
    before, variances fall off as a power of the direction's rank, means are large, and a few
    columns are hundreds of times the rest."""
    rng = np.random.default_rng(seed)
    builder = create_run(path, "made-up", "stream")
    coords: dict[str, np.ndarray] = {
        "document": np.arange(rows),
        "position": np.zeros(rows, np.int32),
        "token_id": np.zeros(rows, np.int32),
        "sequence": np.arange(rows),
    }
    builder.append(coords, [np.zeros(1, np.int32)] * rows, np.arange(rows))
    writer = builder.finish(
        key={"seed": seed, "model": {"fingerprint": "made-up"}},
        info={},
        sites={"resid": _Site("layer", layers, width)},
        wanted={"resid": list(range(layers))},
        dtype=dtype,
    )
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
    falling = (np.arange(1, width + 1) ** -0.7).astype(np.float32)
    scale = np.where(rng.random(width) < 0.005, 300.0, 1.0).astype(np.float32)
    offset = 3 * rng.standard_normal(width, np.float32)
    mixing = rng.standard_normal((layers, 2, width, width), np.float32) / np.sqrt(width)
    with writer:
        for shard in writer.pending():
            size = writer.shard_size(shard)
            state = (rng.standard_normal((size, width), np.float32) * falling) @ turn * 5
            states = []
            for layer in range(layers):
                states.append((state + offset * (1 + layer)) * scale)
                inside = np.tanh(state @ mixing[layer, 0].astype(np.float32))
                noise = 0.3 * rng.standard_normal(state.shape, np.float32)
                state = state + inside @ mixing[layer, 1].astype(np.float32) + noise
            writer.write(shard, {"resid": np.stack(states).astype(dtype)})
    return writer.run


@dataclass(frozen=True)
class Block:
    """Some of the rows."""

    out: slice


class MadeUpRows:
    """Rows that are made when they are read, from a pool of normal ones, so that there can be any
    number of them; a row's numbers follow from its place and layer."""

    model, corpus, dtype = "made-up", "rows", "float16"
    POOL = 8_192

    def __init__(self, layers: int, width: int, rows: int, seed: int = 0) -> None:
        self.sites: Mapping[str, Sequence[int]] = {"resid": list(range(layers))}
        self.n_samples, self._width, self._seed = rows, width, seed
        rng = np.random.default_rng(seed)
        self._pool = rng.standard_normal((self.POOL, width), np.float32).astype(np.float16)

    def width(self, site: str) -> int:
        """Features."""
        del site
        return self._width

    def row_blocks(self, max_rows: int) -> list[Block]:
        """All rows in order."""
        starts = range(0, self.n_samples, max_rows)
        return [Block(slice(a, min(a + max_rows, self.n_samples))) for a in starts]

    def read(
        self, site: str, layer: int, block: Block, out: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows, width) float16."""
        del site
        size = block.out.stop - block.out.start
        at = (block.out.start * 31 + layer * 977) % self.POOL
        first = self._pool[at : at + size]
        if out is None:
            out = np.empty((size, self._width), np.float16)
        done = 0
        while done < size:
            first = self._pool[at : at + size - done]
            out[done : done + len(first)] = first
            done, at = done + len(first), 0
        return out

    def key(self, sites: Mapping[str, Sequence[int]] | None = None) -> str:
        """What determines the numbers."""
        return f"made up {self.n_samples} {self._width} {self._seed} {sites or self.sites}"

    def info(self) -> Mapping[str, Any]:
        """Provenance."""
        return {}
