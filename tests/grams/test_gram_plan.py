"""The plan covers every pair once, shares the work evenly, and keeps its promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import GramError
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


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=20),
    st.integers(1, 9),
    st.sampled_from(["float64", "float32"]),
    st.booleans(),
)
def test_tasks_add_up_to_the_whole(
    widths: list[int], workers: int, dtype: str, tiled: bool
) -> None:
    columns = Columns([Column("s", k, w) for k, w in enumerate(widths)], "m")
    free = make_plan(Shape(8192), columns, workers=workers, dtype=dtype)
    memory = free.peak_memory - free.gram_bytes // 2 if tiled else None
    plan = make_plan(Shape(8192), columns, workers=workers, dtype=dtype, memory=memory, tiled=tiled)
    costs = [plan.cost(task) for task in plan.tasks]
    assert sum(cost.operations for cost in costs) == plan.flops
    assert sum(cost.read for cost in costs) == plan.bytes_read
    for number in range(plan.passes):
        held = [plan.cost(task).held for task in plan.of_pass(number)]
        assert sum(held) <= plan.peak_memory
    assert plan.workers <= workers


def test_a_cluster_of_more_workers_gives_each_less() -> None:
    columns = columns_of(49, 1600)
    most = []
    for workers in (1, 8, 64):
        plan = make_plan(Shape(1_000_000), columns, workers=workers)
        costs = [plan.cost(task) for task in plan.tasks]
        most.append([max(getattr(c, n) for c in costs) for n in ("operations", "held", "read")])
        assert len(plan.tasks) == workers
        text = plan.describe()
        assert f"tasks             {workers}, {workers} at a time" in text
        assert "largest task" in text
    one, eight, many = np.array(most) / most[0]
    assert one.tolist() == [1, 1, 1]
    assert eight[0] < 1.2 / 8
    assert many[0] < 1.3 / 64
    assert many[2] < eight[2] < 0.75
    with pytest.raises(GramError, match="workers=0: at least one task runs at a time"):
        make_plan(Shape(10), columns, workers=0)


def test_what_the_source_holds_counts() -> None:
    class Holding(Shape):
        held_bytes = 12_345

    few = columns_of(3, 100)
    plain, holding = (make_plan(kind(100), few, workers=1) for kind in (Shape, Holding))
    assert holding.peak_memory == plain.peak_memory + 12_345


def test_sizes_are_read_with_their_units() -> None:
    assert parse_size("4GiB") == 4 << 30
    assert parse_size("1.5 MB") == 1_500_000
    assert parse_size(77) == 77
