"""A weighted Gram is that of repeated rows, however it is cut, kept or combined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import mean_squared_error, r2_score
from zarr.storage import LocalStore, MemoryStore

from actstore.errors import FitError, GramError
from actstore.fitting import cross_validate, fit
from actstore.grams import Gram, align, compute_gram, gram, make_parts, make_plan
from actstore.grams.columns import select_columns
from actstore.grams.weights import make_weights
from tests.grams.gram_fakes import MemoryRun, joined, run_of, whole


def close(found: np.ndarray, expected: np.ndarray, scale: Any = None) -> None:
    size = np.abs(expected if scale is None else scale).max()
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13 * (size + 1e-300))


def repeated(run: MemoryRun, counts: np.ndarray) -> MemoryRun:
    """Each row as often as its weight says."""
    arrays = {
        site: {k: np.repeat(values, counts, axis=0) for k, values in layers.items()}
        for site, layers in run.arrays.items()
    }
    return MemoryRun(arrays, document=np.repeat(run.document, counts))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 30),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 3),
    st.sampled_from(["float32", "float16"]),
    st.data(),
)
def test_whole_weights_are_rows_repeated(
    n: int, width: int, layers: int, shard: int, ranges: int, dtype: str, data: st.DataObject
) -> None:
    run = run_of(n, width, layers, shard_rows=shard, dtype=dtype)
    counts = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    numbers = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    counts[:2], numbers[:2] = (2, 3), (0, 1)
    counts[numbers == 2] += 1
    parts = make_parts(run, numbers)
    plan = make_plan(
        run,
        select_columns(run, None, None),
        workers=2,
        row_ranges=ranges,
        block_rows=data.draw(st.integers(1, 30)),
        parts=len(parts),
    )
    found = compute_gram(run, plan, parts, weights=make_weights(run, counts, parts))
    z, times = joined(run), counts[:, None]
    assert (found.n, found.rows) == (counts.sum(), np.count_nonzero(counts))
    close(whole(found), z.T @ (times * z))
    centred = z - (times * z).sum(axis=0) / counts.sum()
    close(whole(found, centred=True), centred.T @ (times * centred), z.T @ (times * z))
    close(
        np.concatenate([found.mean(k) for k in found.layers]), z.mean(axis=0) - centred.mean(axis=0)
    )
    for part, label in zip(found.parts, parts.labels, strict=True):
        own = numbers == int(label)
        close(whole(part), z[own].T @ (times * z)[own], z.T @ (times * z))
        assert (part.n, part.rows) == (counts[own].sum(), np.count_nonzero(counts[own]))
    again = gram(repeated(run, counts))
    close(whole(again), whole(found))
    assert again.n == found.n


@pytest.mark.parametrize("precision", ["float64", "sketch", "float32"])
@pytest.mark.parametrize("tiled", [False, True])
def test_in_every_precision_and_in_passes(precision: str, tiled: bool) -> None:
    n = 700 if tiled else 300
    run = run_of(n, 100 if tiled else 8, 9, store=MemoryStore() if tiled else None)
    weights = np.random.default_rng(0).uniform(0, 3, n)
    weights[::7] = 0
    memory = "6MB" if tiled else None
    found = gram(run, weights=weights, precision=precision, memory=memory)
    assert isinstance(found.blocks, dict) != tiled
    z = joined(run)
    expected = z.T @ (weights[:, None] * z)
    scale = np.sqrt(np.diag(expected))
    error = np.abs(whole(found) - expected) / np.outer(scale, scale)
    assert error.max() < (1e-12 if precision == "float64" else 1e-6)
    assert found.n == pytest.approx(weights.sum(), rel=1e-14)
    assert found.rows == np.count_nonzero(weights)
    if tiled:
        read = run.reads
        again = gram(run, weights=weights, precision=precision, memory=memory)
        assert (run.reads, again.n, again.rows) == (read, found.n, found.rows)
        assert again.provenance == found.provenance
        np.testing.assert_array_equal(again.weights, weights)


def test_weights_are_in_the_key_and_in_the_file(tmp_path: Path) -> None:
    def run() -> MemoryRun:
        return run_of(n=60, store=LocalStore(tmp_path / "s"))

    weights = np.arange(60.0)
    first, plain = gram(run(), weights=weights), gram(run())
    assert np.abs(whole(first) - whole(plain)).max() > 1
    again = run()
    kept = gram(again, weights=weights)
    assert again.reads == 0
    np.testing.assert_array_equal(whole(kept), whole(first))
    assert kept.provenance == first.provenance
    assert kept.provenance["runs"][0]["weights"]["name"] == "array"
    assert gram(again, weights=weights + 1).n == weights.sum() + 60
    first.save(tmp_path / "g")
    loaded = Gram.load(tmp_path / "g")
    assert (loaded.n, loaded.rows) == (first.n, first.rows) == (weights.sum(), 59)
    assert "59 rows that weigh 1,770" in repr(loaded)


def test_weighted_grams_add_up_and_come_apart() -> None:
    a, b = run_of(n=40), run_of(n=50, seed=1, corpus="d")
    u, v = np.random.default_rng(0).uniform(0.1, 2, 40), np.random.default_rng(1).uniform(0, 1, 50)
    one, two = gram(a, weights=u), gram(b, weights=v)
    both, z = one + two, np.concatenate([joined(a), joined(b)])
    expected = z.T @ (np.concatenate([u, v])[:, None] * z)
    close(whole(both), expected)
    assert (both.n, both.rows) == (pytest.approx(u.sum() + v.sum()), 90)
    close(whole(both - two), whole(one), expected)
    folded = gram(a, weights=u, parts=4)
    fold = make_parts(a, 4).numbers
    rest = folded.without(2)
    close(whole(rest), joined(a)[fold != 2].T @ (u[:, None] * joined(a))[fold != 2], expected)


def test_two_runs_side_by_side_are_weighted_alike() -> None:
    class Placed(MemoryRun):
        def coordinate(self, name: str) -> np.ndarray:
            return {"document": self.document, "heft": np.arange(self.n_samples) % 3}[name]

        def isel(self, *, sample: Any) -> MemoryRun:
            arrays = {s: {k: v[sample] for k, v in ls.items()} for s, ls in self.arrays.items()}
            run = Placed(arrays, model=self.model, document=self.document[sample])
            return run

    runs = [
        Placed(run_of(n=30, seed=s).arrays, model=name, document=np.arange(30))
        for s, name in enumerate("ab")
    ]
    pair = align(*runs, by=("document",))
    found = gram(pair, sites=("a:resid", "b:resid"), weights="heft")
    heft = np.arange(30) % 3
    expected = joined(runs[0]).T @ (heft[:, None] * joined(runs[1]))
    close(found.cross(("a:resid", 1), ("b:resid", 2)), expected[5:10, 10:15], expected)
    assert found.provenance["runs"][0]["weights"]["name"] == "heft"


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_fits_are_scikit_learns_with_sample_weight(intercept: bool, ridge: float) -> None:
    run = run_of(n=80, width=6, layers=2)
    weights = np.random.default_rng(3).uniform(0, 5, 80)
    weights[[4, 9]] = 0
    maps = fit(run, weights=weights, intercept=intercept, ridge=ridge)
    x, y = (run.arrays["resid"][k].astype(np.float64) for k in (0, 1))
    model = (
        Ridge(alpha=ridge, fit_intercept=intercept, solver="cholesky", tol=1e-12)
        if ridge
        else LinearRegression(fit_intercept=intercept, tol=1e-14)
    ).fit(x, y, sample_weight=weights)
    found = maps[0, 1]
    assert found.method == "cholesky"
    np.testing.assert_allclose(found.matrix, model.coef_.T, rtol=1e-7, atol=1e-9)
    if intercept:
        np.testing.assert_allclose(found.bias, model.intercept_, rtol=1e-7, atol=1e-7)
    scored, predicted = gram(run, weights=weights), model.predict(x)
    kwargs = {"sample_weight": weights, "multioutput": "raw_values"}
    np.testing.assert_allclose(
        maps.r2(scored, average=None).values[0, 0], r2_score(y, predicted, **kwargs), rtol=1e-9
    )
    np.testing.assert_allclose(
        maps.mse(scored, average=None).values[0, 0],
        mean_squared_error(y, predicted, **kwargs),
        rtol=1e-7,
    )


@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize("intercept", [False, True])
def test_rows_are_weighted_where_the_gram_does_not_settle_the_map(n: int, intercept: bool) -> None:
    run = run_of(n=n, width=8, layers=2, shard_rows=7)
    for values in run.arrays["resid"].values():
        values[:, 3] = values[:, 5]
    weights = np.random.default_rng(0).uniform(0.5, 2, n)
    found = fit(run, weights=weights, intercept=intercept)[0, 1]
    x, y = (run.arrays["resid"][k].astype(np.float64) for k in (0, 1))
    if intercept:
        x, y = (z - np.average(z, axis=0, weights=weights) for z in (x, y))
    roots = np.sqrt(weights)[:, None]
    expected = np.linalg.lstsq(roots * x, roots * y, rcond=None)[0]
    assert found.method == "svd"
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-7, atol=1e-9)


def test_rows_that_weigh_nothing_do_not_make_up_for_missing_ones() -> None:
    run = run_of(n=30, width=8, layers=2)
    weights = np.zeros(30)
    weights[:5] = 100.0
    found = fit(run, weights=weights)[0, 1]
    assert (found.method, found.rank) == ("svd", 5)


def test_cross_validation_weighs_training_and_scoring_alike() -> None:
    run = run_of(n=60, width=4, layers=2)
    counts = np.random.default_rng(5).integers(1, 4, 60)
    ridges = [0.1, 10.0]
    weighted = cross_validate(gram(run, weights=counts, parts=4), ridges, intercept=True)
    rows = cross_validate(gram(repeated(run, counts), parts=4), ridges, intercept=True)
    np.testing.assert_allclose(weighted.values, rows.values, rtol=1e-9)


def test_weights_that_cannot_be_used_are_said() -> None:
    run = run_of(n=60)
    weights = np.ones(60)
    for bad, message in (
        (np.ones(3), r"weights are of shape \(3,\), but m/c has 60 samples"),
        (-weights, r"weights='array': row 0 weighs -1.0; weights are finite and ≥ 0"),
        (np.where(np.arange(60) == 7, np.nan, 1), r"row 7 weighs nan"),
        (0 * weights, r"are all zero: no row of m/c counts"),
        (["a"] * 60, r"are of <U1: give a number"),
    ):
        with pytest.raises(GramError, match=message):
            gram(run, weights=bad)
    weights[:15] = 0
    with pytest.raises(GramError, match=r"all rows of part '0' weigh zero"):
        gram(run, weights=weights, parts=np.arange(60) // 15)
    with pytest.raises(FitError, match=r"give the run, or take gram\(run, weights"):
        fit(gram(run), weights=weights)
