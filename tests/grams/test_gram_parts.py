"""Parts kept apart are the Grams of their rows, and taking one out is leaving its rows out."""

from __future__ import annotations

import unittest.mock
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore

from actstore.errors import GramError
from actstore.grams import Gram, compute_gram, gram, make_parts, make_plan
from actstore.grams.columns import select_columns
from tests.grams.gram_fakes import MemoryRun, joined, run_of, whole


def close(found: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13 * np.abs(scale).max())


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 50),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 2),
    st.data(),
)
def test_every_part_is_the_gram_of_its_rows(
    n: int, width: int, layers: int, shard: int, workers: int, ranges: int, data: st.DataObject
) -> None:
    run = run_of(n, width, layers, shard_rows=shard)
    numbers = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    numbers[:2] = 0, 1
    parts = make_parts(run, numbers)
    plan = make_plan(
        run,
        select_columns(run, None, None),
        workers=workers,
        row_ranges=ranges,
        block_rows=data.draw(st.integers(1, 30)),
        parts=len(parts),
    )
    found = compute_gram(run, plan, parts)
    z = joined(run)
    assert found.n == n
    close(whole(found), z.T @ z, z.T @ z)
    labels = [part.provenance["part"] for part in found.parts]
    assert labels == [str(k) for k in np.unique(numbers)]
    for k, part in enumerate(found.parts):
        own, others = z[numbers == int(labels[k])], z[numbers != int(labels[k])]
        assert (part.n, found.without(k).n) == (len(own), len(others))
        close(whole(part), own.T @ own, z.T @ z)
        close(whole(found.without(k)), others.T @ others, z.T @ z)
        assert len(found.without(k).parts) == len(labels) - 1


def test_folds_hold_whole_documents_and_are_of_equal_size() -> None:
    run = run_of(n=300, document=np.repeat(np.arange(60), 5))
    parts = make_parts(run, 10)
    assert parts.sizes == [30] * 10
    assert all(len(set(parts.numbers[run.document == d])) == 1 for d in range(60))
    assert make_parts(run, ("document", 10)).digest() == parts.digest()
    assert make_parts(run, 10, seed=1).digest() != parts.digest()
    assert make_parts(run, "document").sizes == [5] * 60
    assert [p.n for p in gram(run, parts=10).parts] == [30] * 10


def test_selecting_adding_and_saving_keep_parts(tmp_path: Path) -> None:
    found = gram(run_of(n=60, layers=4), parts=4)
    assert repr(found) == "<Gram of m/c: resid layers 0…3, 60 rows in 4 parts, 0 MiB>"
    few = found.select([1, 3])
    np.testing.assert_array_equal(few.parts[2].cross(1, 3), found.parts[2].cross(1, 3))
    both = found + gram(run_of(n=30, layers=4, corpus="d"), parts=2)
    assert [part.n for part in both.parts] == [15, 15, 15, 15, 15, 15]
    assert not (found + gram(run_of(n=30, layers=4))).parts
    both.save(tmp_path / "g")
    again = Gram.load(tmp_path / "g")
    for ours, its in zip([both, *both.parts], [again, *again.parts], strict=True):
        np.testing.assert_array_equal(whole(its), whole(ours))
        assert its.provenance == ours.provenance


def test_parts_are_kept_beside_the_run(tmp_path: Path) -> None:
    def run(**options: int) -> MemoryRun:
        return run_of(n=60, layers=4, store=LocalStore(tmp_path), **options)

    first, again = gram(run(), parts=5), run()
    second = gram(again, parts=5, layers=[1, 2])
    assert again.reads == 0
    np.testing.assert_array_equal(second.parts[3].cross(1, 2), first.parts[3].cross(1, 2))
    assert second.parts[3].provenance == first.parts[3].provenance
    other = gram(again, parts=4)
    assert again.reads > 0
    assert len(other.parts) == 4
    assert not gram(again).parts


def test_a_budget_counts_every_part() -> None:
    run = run_of(n=60, width=200)
    columns = select_columns(run, None, None)
    plain, divided = (make_plan(run, columns, workers=1, parts=k) for k in (0, 5))
    assert divided.peak_memory == plain.peak_memory + 5 * plain.gram_bytes
    assert str(divided).endswith("5 parts kept")
    with pytest.raises(GramError, match=r"with its 20 parts .* choose fewer parts or layers"):
        gram(run, parts=20, memory="20MB", cache=False)
    with pytest.raises(GramError, match="no place on disk for tiles of a Gram: allow more memory"):
        gram(run, parts=20, memory="40MB")


def test_more_parts_than_the_machine_can_hold_are_made_in_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = run_of(n=60, width=50, layers=6, store=LocalStore(tmp_path))
    monkeypatch.setattr("actstore.grams.computing.physical_memory", lambda: 5 << 20)
    with pytest.raises(GramError, match=r"memory=5242880 is too little.*choose fewer parts"):
        gram(run, parts=20, cache=False)
    found = gram(run, parts=20)
    assert not isinstance(found.blocks, dict)
    assert gram(run).n == 60


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 40), st.integers(3, 7), st.integers(2, 4), st.booleans(), st.data())
def test_passes_give_the_same_parts(
    n: int, layers: int, parts: int, weighted: bool, data: st.DataObject
) -> None:
    numbers = np.array(data.draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)))
    numbers[:2] = 0, 1
    weights = np.random.default_rng(n).integers(1, 4, n).astype(float) if weighted else None
    run = run_of(n, 6, layers, shard_rows=9, store=MemoryStore())
    expected = gram(run, parts=numbers, weights=weights, cache=False)
    plan = make_plan(run, expected.columns, workers=1, parts=parts, block_rows=256)
    few = plan.peak_memory - plan.gram_bytes * (parts + 1) // 2
    with unittest.mock.patch("actstore.grams.planning.available_cores", return_value=1):
        found = gram(run, parts=numbers, weights=weights, memory=few)
    assert not isinstance(found.blocks, dict)
    assert (found.n, found.rows) == (expected.n, expected.rows)
    assert found.provenance == expected.provenance
    scale = whole(expected)
    close(whole(found), scale, scale)
    for k, (ours, its) in enumerate(zip(found.parts, expected.parts, strict=True)):
        assert (ours.n, ours.provenance) == (its.n, its.provenance)
        close(whole(ours), whole(its), scale)
        rest = found.without(k)
        assert not isinstance(rest.blocks, dict)
        close(whole(rest), whole(expected.without(k)), scale)
    again = gram(run, parts=numbers, weights=weights)
    for ours, its in zip((again, *again.parts), (found, *found.parts), strict=True):
        np.testing.assert_array_equal(whole(ours), whole(its))


@pytest.mark.fault
def test_interrupted_passes_with_parts_go_on(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def made(store: object) -> MemoryRun:
        return run_of(700, 100, 9, store=store)

    stopping = made(LocalStore(tmp_path))
    read = stopping.read

    def counted(*arguments: object, **options: object) -> np.ndarray:
        if stopping.reads >= 40:
            raise Stopped
        return read(*arguments, **options)  # type: ignore[arg-type]

    stopping.read = counted  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        gram(stopping, memory="9MB", parts=3)
    rest, alone = made(LocalStore(tmp_path)), made(MemoryStore())
    found, expected = gram(rest, memory="9MB", parts=3), gram(alone, memory="9MB", parts=3)
    assert rest.reads < alone.reads - 15
    for ours, its in zip((found, *found.parts), (expected, *expected.parts), strict=True):
        np.testing.assert_array_equal(whole(ours), whole(its))


def test_a_division_that_is_not_one_is_said() -> None:
    run = run_of(n=60)
    for by, message in (
        (1, r"parts=1 gives 1 parts; from 2 to 512 are allowed"),
        (21, r"21 folds asked for, but there are 20 values of document in view"),
        (np.zeros(3), r"array of shape \(3,\), but m/c has 60 samples"),
        (2.5, r"parts=2\.5 is not known"),
        (True, r"parts=True is not known"),
        (0, r"parts=0 gives 0 parts"),
    ):
        with pytest.raises(GramError, match=message):
            gram(run, parts=by)
    with pytest.raises(GramError, match=r"600 Grams.*parts=\('document', 20\) deals"):
        gram(run_of(n=600, document=np.arange(600)), parts="document")
    with pytest.raises(GramError, match="no parts were kept"):
        gram(run).without(0)
    with pytest.raises(GramError, match="part 7 asked for, but there are parts 0…2"):
        gram(run, parts=3).without(7)
