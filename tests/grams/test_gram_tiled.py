"""A Gram larger than its memory is made in passes, kept on disk, and gives the same numbers."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore

from actstore.errors import CorruptionError, GramError
from actstore.fitting import fit
from actstore.grams import compute_gram, gram, make_plan, plan_gram
from actstore.grams.columns import Column, Columns, select_columns
from actstore.grams.tiling import ORDERS, _lines, plane_orders, share_passes, tile_operations
from tests.grams.gram_fakes import MemoryRun, joined, run_of, whole


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=40),
    st.integers(1, 4),
    st.sampled_from([0, 1, *ORDERS]),
)
def test_every_pair_is_made_once_in_every_plane(widths: list[int], shares: int, order: int) -> None:
    columns = Columns([Column("s", k, w) for k, w in enumerate(widths)], "m")
    passes = share_passes(columns, shares, order)
    tiles = [tile for lots in passes for lot in lots for tile in lot]
    pairs = sorted((t.row, k) for t in tiles for k in range(t.start, t.stop))
    assert pairs == list(combinations_with_replacement(range(len(widths)), 2))
    assert sum(tile_operations(t, columns) for t in tiles) == sum(widths) ** 2
    assert all(len(lots) <= shares for lots in passes)


def test_a_plane_of_order_q_reads_a_layer_q_plus_once_for_a_part_of_the_memory() -> None:
    run = run_of(n=10, width=64, layers=25)
    columns = select_columns(run, None, None)
    for order, readings, passes in ((1, 1, 1), (2, 3, 6), (3, 4, 12), (4, 5, 20), (5, 6, 30)):
        found = share_passes(columns, 1, order)
        read = [
            len({k for t in lots[0] for k in (t.row, *range(t.start, t.stop))}) for lots in found
        ]
        assert (len(found), sum(read) / 25) == (passes, readings)
        largest = max(
            sum(64 * 64 * (t.stop - t.start) for lot in lots for t in lot) for lots in found
        )
        assert largest <= 1.4 * sum(w * 64 * 64 for w in range(1, 26)) / order**2
    assert plane_orders(25) == [1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 19, 23, 0]
    assert plane_orders(2) == [1]


@pytest.mark.parametrize("order", ORDERS)
def test_lines_of_a_plane_meet_in_one_point(order: int) -> None:
    lines = [set(line) for line, _ in _lines(order * order, order)]
    assert len(lines) == order * (order + 1)
    assert all(len(line) == order for line in lines)
    for a, b in combinations(lines[:: 1 + order // 8], 2):
        assert len(a & b) in (0, 1)
    points = order * order // 4
    few = [len(line) for line, _ in _lines(points, order)]
    assert max(few) <= 2 * -(-points // order)


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 12), st.integers(1, 40), st.sampled_from([0.08, 0.2, 0.6]), st.integers(0, 3))
def test_passes_give_the_same_numbers(layers: int, n: int, share: float, seed: int) -> None:
    run = run_of(n, 4, layers, seed=seed, shard_rows=9, store=MemoryStore())
    columns = select_columns(run, None, None)
    plan = make_plan(run, columns, tiled=True, workers=1, block_rows=256)
    assert plan.passes == 1
    z = joined(run)
    spare = plan.peak_memory - plan.gram_bytes
    try:
        found = gram(run, memory=int(spare + share * plan.gram_bytes))
    except GramError:
        assume(False)
    assert not isinstance(found.blocks, dict)
    np.testing.assert_allclose(
        whole(found), z.T @ z, rtol=1e-12, atol=1e-13 * np.abs(z.T @ z).max()
    )
    again = gram(run)
    assert isinstance(again.blocks, dict)
    np.testing.assert_array_equal(whole(again), whole(found))


def big(store: object, n: int = 700) -> MemoryRun:
    return run_of(n, 100, 9, store=store)


def test_a_small_budget_makes_passes_and_keeps_its_promise() -> None:
    run = big(MemoryStore())
    columns = select_columns(run, None, None)
    one = make_plan(run, columns, workers=1)
    budget = one.peak_memory - one.gram_bytes // 2
    plan = make_plan(run, columns, workers=1, memory=budget, tiled=True)
    assert plan.peak_memory <= budget
    with pytest.raises(GramError, match="need a place on disk"):
        compute_gram(
            run, make_plan(run, columns, workers=1, block_rows=512, memory="4MB", tiled=True)
        )
    text = make_plan(run, columns, workers=1, memory="4MB", tiled=True).describe()
    assert "passes            6, each layer in 3 of them, tiles on disk in between" in text
    assert "peak memory" in text
    assert "rows × columns    700 × 900 of 9 layers" in text
    assert plan_gram(run, memory="4MB").passes > 1
    assert run.reads == 0
    with pytest.raises(GramError, match=r"tiles be kept in the run's store with cache=True"):
        gram(run, memory="4MB", cache=False)
    with pytest.raises(GramError, match=r"memory='200KB' is too little.*buffers tile by tile"):
        gram(run, memory="200KB")


def test_blocks_stay_on_disk_and_maps_come_from_them(tmp_path: Path) -> None:
    run = big(LocalStore(tmp_path))
    found = gram(run, memory="5MB")
    assert not isinstance(found.blocks, dict)
    expected = gram(big(None))
    assert found.nbytes == expected.nbytes
    assert found.provenance == expected.provenance
    maps, plain = fit(found, pairs="to_last"), fit(expected, pairs="to_last")
    for pair in maps:
        np.testing.assert_allclose(maps[pair].matrix, plain[pair].matrix, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(maps.r2(found), plain.r2(expected), rtol=1e-10)
    few = found.select([2, 5])
    assert not isinstance(few.blocks, dict)
    np.testing.assert_array_equal(few.cross(2, 5), found.cross(2, 5))
    read = run.reads
    again = gram(run, memory="5MB", layers=[1, 2])
    assert run.reads == read
    np.testing.assert_array_equal(again.cross(1, 2), found.cross(1, 2))


class Stopped(Exception):
    """What ends a computation in the middle."""


@pytest.mark.fault
def test_interrupted_passes_go_on_where_they_ended(tmp_path: Path) -> None:
    def stopping(after: int) -> MemoryRun:
        run = big(LocalStore(tmp_path))
        read = run.read

        def counted(*arguments: object, **options: object) -> np.ndarray:
            if run.reads >= after:
                raise Stopped
            return read(*arguments, **options)  # type: ignore[arg-type]

        run.read = counted  # type: ignore[method-assign]
        return run

    with pytest.raises(Stopped):
        gram(stopping(40), memory="5MB")
    rest = big(LocalStore(tmp_path))
    found = gram(rest, memory="5MB")
    alone = big(MemoryStore())
    expected = gram(alone, memory="5MB")
    assert rest.reads < alone.reads - 15
    np.testing.assert_array_equal(whole(found), whole(expected))


@pytest.mark.fault
def test_a_changed_tile_is_noticed_when_it_is_used(tmp_path: Path) -> None:
    found = gram(big(LocalStore(tmp_path)), memory="5MB")
    chunk = next(p for p in tmp_path.rglob("c/7/0/0") if "moments" in str(p))
    data = bytearray(chunk.read_bytes())
    data[70] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(CorruptionError, match="moments_100x100 of the Gram"):
        whole(found)
