"""Runs in memory with given rows, stored and opened as any other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
from zarr.storage import MemoryStore

import actstore
from actstore.store import create_run


def memory_run(
    rows: Sequence[np.ndarray],
    *,
    model: str = "m",
    corpus: str = "c",
    documents: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    token_ids: Sequence[int] | None = None,
    keep: Iterable[int] | None = None,
    shard_rows: int = 32,
) -> actstore.Run:
    """Layers 0… of ``resid``; three samples a document unless `documents` says otherwise.

    `keep` leaves only these samples in the run, under their own documents and positions.
    """
    n, width = rows[0].shape
    document = np.arange(n) // 3 if documents is None else np.asarray(documents)
    position = np.arange(n) % 3 if positions is None else np.asarray(positions)
    token = np.zeros(n, np.int32) if token_ids is None else np.asarray(token_ids, np.int32)
    kept = np.arange(n) if keep is None else np.array(sorted(keep))
    store = MemoryStore()
    builder = create_run(store, model, corpus)
    # A document is one sequence, whose ids are known where it has samples.
    names, sequence = np.unique(document[kept], return_inverse=True)
    ids = [np.zeros(int(position[document == name].max()) + 1, np.int32) for name in names]
    for number, name in enumerate(names):
        ids[number][position[document == name]] = token[document == name]
    builder.append(
        {
            "document": document[kept].astype(np.int64),
            "position": position[kept].astype(np.int32),
            "sequence": sequence,
            "token_id": token[kept],
        },
        ids,
        names.astype(np.int64),
    )
    site = SimpleNamespace(dim="layer", size=len(rows), width=width, module="h.*")
    values = np.stack(rows)[:, kept].astype(np.float32)
    with builder.finish(
        key={"model": {"fingerprint": model}},
        info={},
        sites={"resid": site},
        wanted={"resid": list(range(len(rows)))},
        dtype="float32",
        shard_rows=shard_rows,
    ) as writer:
        for shard in range(writer.n_shards):
            start = shard * writer.shard_rows
            writer.write(shard, {"resid": values[:, start : start + writer.shard_size(shard)]})
    return actstore.open(store)[model, corpus]
