"""The plan covers every pair once, shares the work evenly, and keeps its promises."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.grams import Column, Columns, make_plan
from actstore.grams.sizes import parse_size


class Shape:
    """A run that nobody reads."""

    model, corpus, dtype = "m", "c", "float16"

    def __init__(self, n_samples: int) -> None:
        self.n_samples = n_samples

    def row_blocks(self, max_rows: int) -> list[int]:
        return list(range(-(-self.n_samples // max_rows)))


def columns_of(layers: int, width: int) -> Columns:
    return Columns([Column("resid", k, width) for k in range(layers)], "m")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=40), st.integers(1, 20), st.integers(1, 3)
)
def test_every_pair_has_one_owner(widths: list[int], workers: int, row_ranges: int) -> None:
    columns = Columns([Column("s", k, w) for k, w in enumerate(widths)], "m")
    plan = make_plan(Shape(9000), columns, workers=workers, row_ranges=row_ranges)
    owned = [(t.row, k) for t in plan.tiles for k in range(t.start, t.stop)]
    n = len(columns)
    assert sorted(owned) == [(i, j) for i in range(n) for j in range(i, n)]
    assert plan.gram_bytes == 8 * sum(widths[i] * widths[j] for i, j in owned)
    assert plan.flops == 9000 * sum(widths) ** 2
    for task in plan.tasks:
        assert {t.row for t in task.tiles} <= set(task.columns)
    covered = sorted({(t.first, t.stop) for t in plan.tasks})
    assert covered[0][0] == 0
    assert covered[-1][1] == plan.n_blocks


def test_workers_get_equal_work_and_read_few_layers() -> None:
    columns = columns_of(32, 1024)
    for workers in (2, 8):
        plan = make_plan(Shape(10_000), columns, workers=workers)
        work = [
            sum(sum(1 if k == t.row else 2 for k in range(t.start, t.stop)) for t in task.tiles)
            for task in plan.tasks
        ]
        assert len(work) == workers
        assert max(work) < 1.2 * np.mean(work)
        read = sum(len(task.columns) for task in plan.tasks)
        assert read < (1 + workers**0.5) * 32


def test_memory_does_not_depend_on_rows() -> None:
    columns = columns_of(13, 768)
    small, large = (make_plan(Shape(n), columns, workers=2) for n in (10_000, 10_000_000))
    assert small.peak_memory == large.peak_memory
    assert 0.42 * 2**30 < small.peak_memory < 1.2 * 2**30
    assert large.flops == 1000 * small.flops


def test_a_budget_takes_rows_and_then_workers() -> None:
    columns = columns_of(13, 768)
    free = make_plan(Shape(10_000), columns, workers=4)
    tight = make_plan(Shape(10_000), columns, workers=4, memory=free.gram_bytes + (200 << 20))
    assert tight.peak_memory <= free.gram_bytes + (200 << 20)
    assert (tight.block_rows, tight.workers) < (free.block_rows, free.workers)
    assert "13 layers, 9,984 columns × 10,000 rows" in str(tight)


def test_sizes_are_read_with_their_units() -> None:
    assert parse_size("4GiB") == 4 << 30
    assert parse_size("1.5 MB") == 1_500_000
    assert parse_size(77) == 77
