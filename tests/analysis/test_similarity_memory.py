"""Similarity is made of width × width products, whatever the number of rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
from store_like import memory_run

from analysis import similarity

N = 6000


def test_no_kernel_of_rows_by_rows_is_made():
    """CASES 48: one such kernel would be 288 MB in float64."""
    rng = np.random.default_rng(0)
    run = memory_run([rng.normal(size=(N, 4)) for _ in range(3)], shard_rows=1024)
    tracemalloc.start()
    try:
        found = similarity.layers(run)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert set(similarity.MEASURES) <= set(found)
    assert peak < N * N  # an eighth of one
