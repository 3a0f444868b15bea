"""A run held in memory, and activations that resemble a residual stream."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr


@dataclass(frozen=True)
class Block:
    rows: slice
    out: slice


class MemoryRun:
    """What the Gram needs of a run, over arrays; rows are cut at shard borders."""

    def __init__(
        self,
        arrays: Mapping[str, Mapping[int, np.ndarray]],
        *,
        shard_rows: int = 10**9,
        model: str = "m",
        corpus: str = "c",
        dtype: str | None = None,
        fingerprint: str = "f",
        store: Any = None,
        document: np.ndarray | None = None,
    ) -> None:
        self.arrays = {site: dict(layers) for site, layers in arrays.items()}
        first = next(iter(next(iter(self.arrays.values())).values()))
        self.model, self.corpus, self.dtype = model, corpus, dtype or first.dtype.name
        self.n_samples, self.shard_rows = len(first), shard_rows
        self.sites = {site: sorted(layers) for site, layers in self.arrays.items()}
        self.fingerprint, self.store = fingerprint, store
        self.reads = 0
        self.document = np.arange(self.n_samples) // 3 if document is None else document

    def coordinate(self, name: str) -> np.ndarray:
        assert name == "document"
        return self.document

    def width(self, site: str) -> int:
        return int(self.arrays[site][self.sites[site][0]].shape[1])

    def row_blocks(self, max_rows: int) -> list[Block]:
        blocks = []
        for shard in range(0, self.n_samples, self.shard_rows):
            end = min(shard + self.shard_rows, self.n_samples)
            for start in range(shard, end, max_rows):
                stop = min(start + max_rows, end)
                blocks.append(Block(slice(start, stop), slice(start, stop)))
        return blocks

    def read(
        self, site: str, layer: int, block: Block, out: np.ndarray | None = None
    ) -> np.ndarray:
        self.reads += 1
        values = self.arrays[site][layer][block.rows]
        if out is None:
            return values
        assert out.shape == values.shape
        assert out.dtype == values.dtype
        out[:] = values
        return out

    def key(self, sites: Mapping[str, Sequence[int]] | None = None) -> str:
        digest = hashlib.sha256()
        for site, layers in sorted((sites or self.sites).items()):
            for layer in layers:
                digest.update(f"{site}{layer}".encode() + self.arrays[site][layer].tobytes())
        return digest.hexdigest()

    def info(self) -> dict[str, Any]:
        return {"key": {"model": {"fingerprint": self.fingerprint}}}

    def cache_group(self, name: str, *, create: bool = False) -> zarr.Group | None:
        if self.store is None:
            return None
        root = zarr.open_group(self.store, mode="a")
        if create:
            return root.require_group(name)
        return root.get(name)


def stream(
    n: int, width: int, layers: int, *, seed: int = 0, dtype: str = "float32", mean: float = 3.0
) -> dict[int, np.ndarray]:
    """Layers that add to one another, with a large mean and one outlier column."""
    rng = np.random.default_rng(seed)
    state = rng.standard_normal((n, width)) + mean * rng.standard_normal(width)
    state[:, 0] *= 50
    result = {}
    for layer in range(layers):
        result[layer] = state.astype(dtype)
        mixing = rng.standard_normal((width, width)) / np.sqrt(width)
        state = state + np.tanh(state @ mixing) + 0.3 * rng.standard_normal((n, width))
    return result


def run_of(n: int = 60, width: int = 5, layers: int = 3, **options: Any) -> MemoryRun:
    shape = {k: options.pop(k) for k in ("seed", "mean") if k in options}
    dtype = options.pop("dtype", "float32")
    return MemoryRun({"resid": stream(n, width, layers, dtype=dtype, **shape)}, **options)


def joined(run: MemoryRun) -> np.ndarray:
    """(n, N) float64: all columns of a run side by side."""
    parts = [
        run.arrays[site][layer].astype(np.float64)
        for site, layers in run.sites.items()
        for layer in layers
    ]
    return np.concatenate(parts, axis=1)


def whole(gram: Any, *, centred: bool = False) -> np.ndarray:
    """(N, N): every cross moment of a Gram in its place."""
    return np.block([[gram.cross(i, j, centred=centred) for j in gram.layers] for i in gram.layers])
