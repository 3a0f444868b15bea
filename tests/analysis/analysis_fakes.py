"""A run, a model and maps in memory, with the faces that `analysis` uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr


class FakeTokenizer:
    """Token i is written `<i>`, so that every token wants escaping."""

    def __len__(self) -> int:
        return 10_000

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(f" <{i}>" for i in ids)

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return f"Ġ<{token_id}>"


@dataclass
class FakeModel:
    head: np.ndarray  # (width, vocab)
    n_blocks: int
    name: str = "tiny"
    has_head: bool = True
    tokenizer: Any = field(default_factory=FakeTokenizer)
    largest_block: int = 0
    _lock: Any = field(default_factory=Lock)

    @property
    def width(self) -> int:
        return self.head.shape[0]

    @property
    def vocab_size(self) -> int:
        return self.head.shape[1]

    def decode(self, hidden: np.ndarray, *, normed: bool = False) -> np.ndarray:
        with self._lock:
            self.largest_block = max(self.largest_block, len(hidden))
            scale = np.sqrt((hidden**2).mean(axis=1, keepdims=True) + 1e-6)
            return (hidden / scale) @ self.head

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": "float32", "fingerprint": "f00d"}


class FakeRun:
    model, corpus = "tiny", "text"

    def __init__(
        self, states: np.ndarray, layers: list[int], documents: Any = None, shard: int = 10
    ) -> None:
        self.states, self.layers, self.shard = states, layers, shard
        n = self.n_samples = states.shape[1]
        documents = np.arange(n) // 3 if documents is None else np.asarray(documents)
        self.samples = xr.Dataset(
            coords={
                "document": ("sample", documents),
                "sequence": ("sample", np.arange(n) // 2),
                "position": ("sample", np.arange(n) % 2),
            }
        )
        self.sites = {"resid": layers}

    def width(self, site: str) -> int:
        return self.states.shape[2]

    def info(self) -> dict[str, Any]:
        return {"key": {"model": {"dtype": "float32", "fingerprint": "f00d"}}}

    def key(self) -> str:
        return f"{self.states.sum():.6f}"

    def isel(self, sample: Any) -> FakeRun:
        view = FakeRun(self.states[:, sample], self.layers, shard=self.shard)
        view.samples = self.samples.isel(sample=sample)
        return view

    def row_blocks(self, max_rows: int) -> list[Any]:
        blocks = []
        for shard in range(0, self.n_samples, self.shard):
            end = min(shard + self.shard, self.n_samples)
            for start in range(shard, end, max_rows):
                rows = slice(start, min(start + max_rows, end))
                blocks.append(SimpleNamespace(shard=shard // self.shard, rows=rows, out=rows))
        return blocks

    def read(self, site: str, layer: int, block: Any) -> np.ndarray:
        assert site == "resid"
        return self.states[self.layers.index(layer), block.rows]

    def input_ids(self, sequences: np.ndarray) -> list[np.ndarray]:
        return [np.array([2 * s, 2 * s + 1, 7], np.int32) for s in sequences]


class FakeMaps(dict):  # type: ignore[type-arg]
    provenance = {"pairs": "to_last"}  # noqa: RUF012


@dataclass
class FakeMap:
    matrix: np.ndarray
    bias: np.ndarray | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        y = x @ self.matrix.astype(x.dtype)
        return y if self.bias is None else y + self.bias.astype(x.dtype)


def tiny(
    n: int = 37, layers: int = 3, width: int = 6, vocab: int = 40, seed: int = 0
) -> tuple[FakeRun, FakeMaps, FakeModel]:
    """Random states of layers 0…`layers`, maps to the last (one with a bias), and a head."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(layers + 1, n, width)).astype(np.float32)
    for layer in range(1, layers + 1):
        states[layer] += 2 * states[layer - 1]
    maps = FakeMaps()
    for layer in range(layers):
        bias = rng.normal(size=width) if layer == 1 else None
        maps[layer, layers] = FakeMap(rng.normal(size=(width, width)), bias)
    head = rng.normal(size=(width, vocab)).astype(np.float32)
    return FakeRun(states, list(range(layers + 1))), maps, FakeModel(head, layers)
