"""Grams of some pairs of layers: the same numbers as of all, at a part of the cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore

from actstore.errors import FitError, GramError, SiteError
from actstore.fitting import cross_validate, fit, identity_r2, procrustes, ridge_path
from actstore.grams import Gram, gram, plan_gram
from actstore.grams.columns import Columns, select_columns
from actstore.grams.pairs import needed_blocks
from actstore.grams.tiling import plane_orders, share_passes
from tests.grams.gram_fakes import MemoryRun, run_of


def blocks_of(found: Gram) -> set[tuple[int, int]]:
    return set(found.blocks)


@st.composite
def some_pairs(draw: Any) -> tuple[int, list[tuple[int, int]]]:
    layers = draw(st.integers(2, 9))
    place = st.integers(0, layers - 1)
    return layers, draw(st.lists(st.tuples(place, place), min_size=1, max_size=12))


@settings(max_examples=40, deadline=None)
@given(some_pairs(), st.integers(1, 5), st.sampled_from(range(8)), st.sampled_from([3, 700, 2000]))
def test_every_block_is_made_once_however_the_work_is_cut(
    drawn: tuple[int, list[tuple[int, int]]], shares: int, number: int, width: int
) -> None:
    layers, pairs = drawn
    run = MemoryRun({"resid": {k: np.zeros((1, width)) for k in range(layers)}})
    columns = select_columns(run, None, None)
    blocks = needed_blocks(columns, pairs)
    every = {(i, j) for j in range(layers) for i in range(j + 1)}
    wanted = {(min(p), max(p)) for p in pairs} | {(k, k) for k in range(layers)}
    assert wanted == (every if blocks is None else blocks)
    orders = plane_orders(layers)
    passes = share_passes(columns, shares, orders[number % len(orders)], blocks)
    made = [
        (tile.row, k)
        for lots in passes
        for lot in lots
        for tile in lot
        for k in range(tile.start, tile.stop)
    ]
    assert sorted(made) == sorted(wanted)
    for lots in passes:
        assert 1 <= len(lots) <= shares
        for tile in (tile for lot in lots for tile in lot):
            assert tile.diagonal == (tile.row == tile.start)
            assert tile.stop == tile.start + 1 or not tile.diagonal


@settings(max_examples=15, deadline=None)
@given(some_pairs(), st.integers(1, 60), st.booleans(), st.sampled_from(["float64", "sketch"]))
def test_blocks_of_some_pairs_are_those_of_all(
    drawn: tuple[int, list[tuple[int, int]]], n: int, parts: bool, precision: str
) -> None:
    layers, pairs = drawn
    run = run_of(n, 6, layers, shard_rows=16)
    options: dict[str, Any] = {"precision": precision, "parts": 2 if parts and n > 8 else None}
    some, every = (gram(run, pairs=p, cache=False, **options) for p in (pairs, None))
    wanted = {(min(p), max(p)) for p in pairs} | {(k, k) for k in range(layers)}
    assert blocks_of(some) == wanted
    for mine, its in zip((some, *some.parts), (every, *every.parts), strict=True):
        largest = max(np.abs(block).max() for block in its.blocks.values())
        close = (1e-11 if precision == "float64" else 1e-6) * (1 + largest)
        for i, j in wanted:
            np.testing.assert_allclose(mine.cross(i, j), its.cross(i, j), rtol=0, atol=close)
            np.testing.assert_allclose(mine.cross(j, i), its.cross(j, i), rtol=0, atol=close)
        for k in range(layers):
            np.testing.assert_allclose(mine.mean(k), its.mean(k), rtol=1e-12)


def test_names_take_a_part_of_the_blocks_and_of_the_operations() -> None:
    run = run_of(40, 8, 12)
    every = plan_gram(run)
    counts = {}
    for name in ("to_last", "adjacent", "within", "ordered", "all"):
        read = run.reads
        plan = plan_gram(run, pairs=name)
        assert run.reads == read
        counts[name] = len(plan.pairs)
        assert blocks_of(gram(run, pairs=name, cache=False)) == set(plan.pairs)
        # A diagonal block counts half.
        assert plan.flops * 12**2 == every.flops * (2 * len(plan.pairs) - 12)
    assert counts == {"to_last": 23, "adjacent": 23, "within": 12, "ordered": 78, "all": 78}
    text = plan_gram(run, pairs="to_last").describe()
    assert "blocks            23 of 78 pairs of layers" in text


def test_what_is_not_there_is_named() -> None:
    run = run_of(40, 4, 5)
    some = gram(run, pairs=[(0, 2), (4, 1)], cache=False)
    assert "(7 of 15 pairs)" in repr(some)
    with pytest.raises(GramError, match=r"between 0 and 3 are not in <Gram of m/c.*its pairs="):
        some.cross(0, 3)
    with pytest.raises(GramError, match="between 0 and 3"):
        fit(some, pairs=[(0, 3)])
    with pytest.raises(GramError, match="different pairs of layers cannot be combined"):
        some + gram(run, pairs="to_last", cache=False)
    twice = some + some
    np.testing.assert_allclose(twice.cross(1, 4), 2 * some.cross(1, 4))
    assert blocks_of(some.select([2, 0, 3])) == {(0, 0), (0, 1), (1, 1), (2, 2)}
    np.testing.assert_array_equal(some.select([2, 0]).cross(2, 0), some.cross(2, 0))
    with pytest.raises(FitError, match="pairs='first' is not known"):
        gram(run, pairs="first")
    with pytest.raises(FitError, match="pairs='within' is not known"):
        fit(run, pairs="within")
    with pytest.raises(SiteError):
        gram(run, pairs=[(0, 9)])


@pytest.mark.parametrize("pairs", ["to_last", "adjacent", [(0, 3), (3, 1)]])
def test_fits_and_scores_of_a_run_take_no_more_than_they_need(pairs: Any) -> None:
    run, rows = (run_of(200, 6, 5, seed=3, store=MemoryStore()) for _ in range(2))
    every = gram(rows, cache=False)
    maps, plain = fit(run, pairs=pairs), fit(every, pairs=pairs)
    needed = needed_blocks(Columns(list(every.columns), every.columns.owner), pairs)
    assert needed is not None
    for pair in plain:
        np.testing.assert_allclose(maps[pair].matrix, plain[pair].matrix, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(maps.r2(run), plain.r2(every), rtol=1e-12)
    np.testing.assert_allclose(identity_r2(run, pairs), identity_r2(every, pairs), rtol=1e-12)
    np.testing.assert_allclose(
        ridge_path(run, [0.1, 1], pairs=pairs).r2(run),
        ridge_path(every, [0.1, 1], pairs=pairs).r2(every),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        procrustes(run, pairs=pairs).r2(run), procrustes(every, pairs=pairs).r2(every), rtol=1e-9
    )
    folds = gram(rows, parts=5, cache=False)
    np.testing.assert_allclose(
        cross_validate(run, [0.1, 1], pairs=pairs), cross_validate(folds, [0.1, 1], pairs=pairs)
    )


def test_what_is_kept_serves_fewer_pairs_and_not_more(tmp_path: Path) -> None:
    run = run_of(90, 6, 6, store=LocalStore(tmp_path))
    last = gram(run, pairs="to_last")
    read = run.reads
    again = gram(run, pairs="to_last")
    assert run.reads == read
    assert blocks_of(again) == blocks_of(last)
    assert again.provenance == last.provenance
    np.testing.assert_array_equal(again.cross(0, 5), last.cross(0, 5))
    every = gram(run)
    assert run.reads > read
    read = run.reads
    near = gram(run, pairs="adjacent")
    few = gram(run, layers=[1, 2, 4], pairs=[(1, 4)])
    assert run.reads == read
    assert blocks_of(near) == {(k, k) for k in range(6)} | {(k, k + 1) for k in range(5)}
    assert blocks_of(few) == {(0, 0), (1, 1), (2, 2), (0, 2)}
    np.testing.assert_array_equal(few.cross(1, 4), every.cross(1, 4))
    path = tmp_path / "some.gram"
    near.save(path)
    loaded = Gram.load(path)
    assert blocks_of(loaded) == blocks_of(near)
    np.testing.assert_array_equal(loaded.cross(2, 3), near.cross(2, 3))


def test_some_pairs_in_passes_over_a_small_memory() -> None:
    run = run_of(300, 100, 9, store=MemoryStore())
    found = gram(run, pairs="to_last", memory="3MB")
    plan = plan_gram(run, pairs="to_last", memory="3MB")
    assert plan.passes > 1
    assert plan.peak_memory <= 3e6
    assert not isinstance(found.blocks, dict)
    every = gram(run_of(300, 100, 9))
    assert blocks_of(found) == set(plan.pairs)
    for i, j in plan.pairs:
        np.testing.assert_allclose(found.cross(i, j), every.cross(i, j), rtol=1e-9, atol=1e-6)
    read = run.reads
    assert isinstance(gram(run, pairs="to_last").blocks, dict)
    assert run.reads == read
