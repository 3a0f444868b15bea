"""Runs on disk whose rows a test chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import actstore
from actstore.store import create_run


@dataclass(frozen=True)
class _Spec:
    dim: str
    size: int
    width: int
    module: str = "h.*"


def stored_run(
    folder: Path,
    states: np.ndarray,
    coordinates: Mapping[str, np.ndarray] | None = None,
    *,
    model: str = "tiny",
    corpus: str = "text",
    shard_rows: int = 16,
    fingerprint: str = "f00d",
) -> actstore.Run:
    """A run of ``resid`` with `states`, (layers, samples, width), three samples a document."""
    layers, n, width = states.shape
    coords: dict[str, Any] = {
        "document": np.arange(n) // 3,
        "position": (np.arange(n) % 3).astype(np.int32),
        "sequence": np.arange(n) // 3,
        "token_id": (np.arange(n) % 7).astype(np.int32),
        **(coordinates or {}),
    }
    sequences = [np.arange(3, dtype=np.int32) for _ in range(int(coords["sequence"].max()) + 1)]
    owners = np.zeros(len(sequences), np.int64)
    owners[coords["sequence"]] = coords["document"]
    builder = create_run(folder, model, corpus)
    builder.append(coords, sequences, owners)
    writer = builder.finish(
        key={"model": {"fingerprint": fingerprint}, "corpus": corpus, "sampling": {}},
        info={},
        sites={"resid": _Spec("layer", layers, width)},
        wanted={"resid": list(range(layers))},
        dtype=states.dtype.name,
        codec="none",
        shard_rows=shard_rows,
    )
    with writer:
        for shard in writer.pending():
            start, stop = shard * shard_rows, min((shard + 1) * shard_rows, n)
            writer.write(shard, {"resid": states[:, start:stop]})
    return actstore.open(folder)[model, corpus]


def stream(n: int, width: int, layers: int, *, seed: int = 0, noise: float = 0.3) -> np.ndarray:
    """(layers + 1, n, width) float32: each layer a nonlinear step from the one before."""
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(n, width)) * np.linspace(0.2, 3, width) + rng.normal(size=width)
    states = [state]
    for _ in range(layers):
        mixing = rng.normal(size=(width, width)) / np.sqrt(width)
        state = state + np.tanh(state @ mixing) + noise * rng.normal(size=(n, width))
        states.append(state)
    return np.stack(states).astype(np.float32)
