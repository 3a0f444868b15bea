"""Memory is what the plan says whatever the number of rows; a cluster gives the same numbers."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from actstore.errors import NonFiniteError
from actstore.grams import compute_gram, gram, make_plan
from actstore.grams.columns import select_columns
from tests.grams.gram_fakes import Block, MemoryRun, run_of, whole


class EndlessRun(MemoryRun):
    """Rows made when they are read: nothing is held."""

    def __init__(self, n: int, width: int, layers: int) -> None:
        super().__init__({"resid": {k: np.zeros((1, width), "float32") for k in range(layers)}})
        self.n_samples = n
        self.rows = np.random.default_rng(0).standard_normal((512, width), np.float32)

    def read(
        self, site: str, layer: int, block: Block, out: np.ndarray | None = None
    ) -> np.ndarray:
        self.reads += 1
        values = self.rows[: block.out.stop - block.out.start]
        if out is None:
            return values.copy()
        out[:] = values
        return out


def peak_memory(n: int) -> tuple[int, int]:
    run = EndlessRun(n, 64, 6)
    plan = make_plan(run, select_columns(run, None, None), workers=2, block_rows=512)
    tracemalloc.start()
    try:
        compute_gram(run, plan)
        return tracemalloc.get_traced_memory()[1], plan.peak_memory
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_rows() -> None:
    few, promised = peak_memory(2_000)
    many, same = peak_memory(64_000)
    assert promised == same
    assert many < 1.1 * few
    assert many < promised + (1 << 20)


def test_a_cluster_gives_the_same_numbers() -> None:
    distributed = pytest.importorskip("distributed")
    run = run_of(n=100, width=5, layers=4, shard_rows=30)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = gram(run, client=client)
    np.testing.assert_array_equal(whole(found), whole(gram(run)))


def test_one_failure_ends_the_other_tasks() -> None:
    run = EndlessRun(2_000_000, 8, 4)
    run.rows[3, 5] = np.nan
    plan = make_plan(run, select_columns(run, None, None), workers=2, block_rows=512)
    with pytest.raises(NonFiniteError, match="NaN or infinity in rows 3"):
        compute_gram(run, plan)
    time.sleep(0.2)
    before = run.reads
    time.sleep(0.2)
    assert run.reads == before < 20_000
