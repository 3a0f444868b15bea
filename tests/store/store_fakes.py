"""Runs with made-up rows: what a test expects follows from names and numbers alone."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from actstore.store import RunWriter, create_run, resume_run

KEY = {"model": {"fingerprint": "abc"}, "corpus": "def", "sampling": {"seed": 0}}


@dataclass(frozen=True)
class Spec:
    dim: str
    size: int
    width: int
    module: str = "h.*"


SITES = {
    "resid": Spec("layer", 4, 6),
    "attn": Spec("block", 3, 6),
    "wide": Spec("block", 3, 10),
    "final_norm": Spec("layer", 1, 6, "ln_f"),
}
WANTED = {"resid": [0, 1, 2, 3], "wide": [0, 2]}


def values(site: str, layer: int, n: int, width: int) -> np.ndarray:
    """(n, width) float32 rows of one layer."""
    seed = int.from_bytes(hashlib.sha256(f"{site}/{layer}".encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(size=(n, width), scale=50).astype(np.float32)


def coordinates(n: int) -> tuple[dict[str, np.ndarray], list[np.ndarray], np.ndarray]:
    """Two samples a document, each from its own sequence."""
    rng = np.random.default_rng(7)
    ids = [rng.integers(0, 30, size).astype(np.int32) for size in rng.integers(2, 9, n)]
    position = np.array([rng.integers(0, len(i)) for i in ids], np.int32)
    token_id = np.array([i[p] for i, p in zip(ids, position, strict=True)], np.int32)
    document = np.arange(n, dtype=np.int64) // 2
    coords = {
        "document": document,
        "position": position,
        "token_id": token_id,
        "token": np.array([f" t{t}é" for t in token_id], object),
        "sequence": np.arange(n, dtype=np.int64),
        "score": rng.normal(size=n),
        "long": token_id > 15,
    }
    return coords, ids, document


def planned(
    store: object,
    n: int = 50,
    *,
    model: str = "gpt2",
    corpus: str = "wiki",
    dtype: str = "float32",
    codec: str = "none",
    shard_rows: int | None = 16,
    wanted: dict[str, list[int]] | None = None,
    sites: dict[str, Spec] | None = None,
    step: int = 20,
) -> RunWriter:
    """A run whose plan is committed and whose rows are all to be written."""
    coords, ids, document = coordinates(n)
    builder = create_run(store, model, corpus)
    for start in range(0, n, step):
        part = slice(start, start + step)
        builder.append({k: v[part] for k, v in coords.items()}, ids[part], document[part])
    return builder.finish(
        key=KEY,
        info={"made": "up"},
        sites=sites or SITES,
        wanted=wanted or WANTED,
        dtype=dtype,
        codec=codec,
        shard_rows=shard_rows,
    )


def shard_arrays(writer: RunWriter, shard: int) -> dict[str, np.ndarray]:
    """What `RunWriter.write` is to get."""
    record = writer._record
    start, stop = record.shard_range(shard)
    return {
        site: np.stack(
            [values(site, i, record.n_samples, record.sites[site].width) for i in layers]
        )[:, start:stop]
        for site, layers in writer.request.items()
    }


def fill(writer: RunWriter, shards: list[int] | None = None) -> None:
    """Write the pending shards, or these, and release the lock."""
    with writer:
        for shard in writer.pending() if shards is None else shards:
            writer.write(shard, shard_arrays(writer, shard))


def resumed(store: object, wanted: dict[str, list[int]] | None = None, **options: object):
    """A writer for what is missing; None where there is no run."""
    dtype = str(options.pop("dtype", "float32"))
    key = options.pop("key", KEY)
    return resume_run(
        store, "gpt2", "wiki", key=key, wanted=wanted or WANTED, sites=SITES, dtype=dtype, **options
    )


def complete(path: str, n: int = 50, ready: Event | None = None) -> None:
    """Make the run or complete it: what a process that may be killed does."""
    if ready is not None:
        ready.set()
    fill(resumed(path) or planned(path, n))


@cache
def processes() -> BaseContext:
    """Starts children in milliseconds: they are forked from one that has imported this module."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["store_fakes"])
        child = context.Process(target=len, args=("started",))
        child.start()
        child.join()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
