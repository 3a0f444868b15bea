"""Fitted maps equal float64 SVD least squares, whatever the rows are like."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge

from actstore.errors import FitError, SiteError
from actstore.fitting import fit
from actstore.fitting.maps import MapSet
from actstore.grams import gram
from tests.grams.gram_fakes import MemoryRun, run_of, stream


def layer(run: MemoryRun, k: int, site: str = "resid") -> np.ndarray:
    return run.arrays[site][k].astype(np.float64)


def lstsq(run: MemoryRun, i: int, j: int) -> np.ndarray:
    return np.linalg.lstsq(layer(run, i), layer(run, j), rcond=None)[0]


def assert_solves(run: MemoryRun, maps: MapSet, i: int, j: int, *, norm: bool = True) -> None:
    """Same predictions as the reference, and the same norm."""
    x, expected = layer(run, i), lstsq(run, i, j)
    scale = np.abs(layer(run, j)).max()
    found = maps[i, j].matrix
    np.testing.assert_allclose(x @ found, x @ expected, rtol=1e-8, atol=1e-9 * scale)
    if norm:
        assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected), rel=1e-7)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 8),
    st.integers(2, 4),
    st.sampled_from(["float32", "float16"]),
    st.integers(1, 70),
    st.sampled_from([0.0, 3.0, 300.0]),
    st.integers(0, 5),
)
def test_every_pair_is_numpy_lstsq(
    n: int, width: int, layers: int, dtype: str, shard_rows: int, mean: float, seed: int
) -> None:
    run = run_of(n, width, layers, dtype=dtype, shard_rows=shard_rows, mean=mean, seed=seed)
    maps = fit(run)
    assert list(maps) == [(i, j) for i in range(layers) for j in range(i + 1, layers)]
    for i, j in maps:
        assert_solves(run, maps, i, j, norm=n != width)
        assert maps[i, j].rank == min(n, width)
        assert maps[i, j].bias is None


def degenerate(kind: str, n: int = 80, width: int = 8) -> MemoryRun:
    """A run whose layer 0 does not determine the map, in one of the ways that occur."""
    layers = stream(n, width, 3, mean=2.0)
    rng, x = np.random.default_rng(1), layers[0]
    if kind == "duplicate":
        x[:, 5] = x[:, 2]
    elif kind == "zero":
        x[:, 4] = 0
    elif kind == "constant":
        x[:, 4] = 0.3
    elif kind == "two constants":
        x[:, 4], x[:, 6] = 0.3, 0.7
    elif kind == "low rank":
        factors = rng.integers(-4, 5, (n, 3)), rng.integers(-4, 5, (3, width))
        layers[0] = (factors[0] @ factors[1]).astype(np.float32)
    elif kind == "all zero":
        layers[0] = np.zeros_like(x)
    elif kind == "one row again and again":
        layers[0] = np.tile(x[:1], (n, 1))
    return MemoryRun({"resid": layers}, shard_rows=30)


@pytest.mark.parametrize(("n", "constant"), [(5, False), (80, True)])
def test_a_large_mean_costs_no_digits_where_only_raw_moments_have_full_rank(
    n: int, constant: bool
) -> None:
    layers = stream(n, 5, 2, seed=2, mean=3000.0)
    if constant:
        layers[0][:, 3] = 3000.25
    run = MemoryRun({"resid": layers})
    assert_solves(run, fit(run), 0, 1, norm=False)


RANKS = {
    "duplicate": 7,
    "zero": 7,
    "constant": 8,
    "two constants": 7,
    "low rank": 3,
    "all zero": 0,
    "one row again and again": 1,
}


@pytest.mark.parametrize("kind", RANKS)
def test_rank_deficient_sources_get_the_minimum_norm_solution(kind: str) -> None:
    run = degenerate(kind)
    maps = fit(run)
    found = maps[0, 2]
    assert found.rank == RANKS[kind]
    assert found.method == ("cholesky" if kind == "constant" else "svd")
    np.testing.assert_allclose(found.matrix, lstsq(run, 0, 2), rtol=1e-7, atol=1e-10)
    assert maps[1, 2].method == "cholesky"


@pytest.mark.parametrize("kind", [k for k in RANKS if k != "constant"])
def test_a_gram_alone_gives_the_minimum_norm_solution_and_a_warning(kind: str) -> None:
    run = degenerate(kind)
    alone = gram(run)
    alone.run = None
    with pytest.warns(UserWarning, match=r"source layers 0 are too ill-conditioned"):
        maps = fit(alone)
    assert (maps[0, 1].method, maps[0, 1].rank) == ("eigh", RANKS[kind])
    np.testing.assert_allclose(maps[0, 1].matrix, lstsq(run, 0, 1), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("n", [3, 11, 12, 13])
@pytest.mark.parametrize("intercept", [False, True])
def test_fewer_rows_than_features(n: int, intercept: bool) -> None:
    run = run_of(n=n, width=12, shard_rows=4)
    found = fit(run, intercept=intercept)[0, 2]
    x, y = layer(run, 0), layer(run, 2)
    if intercept:
        means = x.mean(axis=0), y.mean(axis=0)
        x, y = x - means[0], y - means[1]
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    assert found.rank == min(n - intercept, 12)
    np.testing.assert_allclose(x @ found.matrix, x @ expected, atol=1e-7)
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-6, atol=1e-6)
    if n - intercept < 12:
        np.testing.assert_allclose(found(layer(run, 0)), layer(run, 2), atol=1e-7)


def test_many_rows_of_low_rank_are_reduced_block_by_block() -> None:
    rng = np.random.default_rng(0)
    factors = rng.integers(-9, 10, (9000, 3)), rng.integers(-9, 10, (3, 20))
    x = (factors[0] @ factors[1]).astype(np.float32)
    x[:, 7] = x[:, 8] = 1.0
    y = (x @ rng.standard_normal((20, 4)) + rng.standard_normal((9000, 4))).astype(np.float32)
    run = MemoryRun({"resid": {0: x}, "mlp": {0: y}}, shard_rows=5000)
    maps = fit(run, sites=("resid", "mlp"))
    found = maps[("resid", 0), ("mlp", 0)]
    expected = np.linalg.lstsq(x.astype(float), y.astype(float), rcond=None)
    assert found.rank == expected[2]
    np.testing.assert_allclose(found.matrix, expected[0], rtol=1e-8, atol=1e-10)
    assert found.condition == pytest.approx(expected[3][0] / expected[3][found.rank - 1], rel=1e-4)


def spread(condition: float, n: int = 500, width: int = 6) -> MemoryRun:
    """Columns of which two nearly agree, and one is 1,000 times the rest."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((n, width))
    x[:, 1] = x[:, 0] + x[:, 1] / condition
    x[:, 2] *= 1000
    x += 10
    y = x @ rng.standard_normal((width, width)) + rng.standard_normal((n, width))
    arrays = {0: x.astype(np.float64), 1: y.astype(np.float64)}
    run = MemoryRun({"resid": arrays}, dtype="float64")
    return run


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e7])
def test_ill_conditioned_sources_are_exact_or_come_from_the_rows(condition: float) -> None:
    run = spread(condition)
    maps = fit(run)
    assert maps[0, 1].method == ("svd" if condition > 1e5 else "cholesky")
    x, y = layer(run, 0), layer(run, 1)
    errors = [((y - x @ a) ** 2).sum(axis=0) for a in (maps[0, 1].matrix, lstsq(run, 0, 1))]
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-11 if condition < 1e5 else 1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 60), st.integers(1, 6), st.floats(0, 1e3), st.booleans(), st.integers(0, 9))
def test_ridge_and_intercept_are_scikit_learns(
    n: int, width: int, ridge: float, intercept: bool, seed: int
) -> None:
    run = run_of(n, width, 2, seed=seed)
    found = fit(run, ridge=ridge, intercept=intercept)[0, 1]
    x, y = layer(run, 0), layer(run, 1)
    model = (
        Ridge(alpha=ridge, fit_intercept=intercept, solver="svd")
        if ridge
        else LinearRegression(fit_intercept=intercept, tol=1e-14)
    ).fit(x, y)
    np.testing.assert_allclose(found(x), model.predict(x).reshape(y.shape), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found.matrix, np.atleast_2d(model.coef_).T, rtol=1e-6, atol=1e-9)
    assert (found.bias is not None) == intercept


def test_ridge_makes_deficient_sources_plain() -> None:
    run = degenerate("duplicate")
    found = fit(run, ridge=5.0)[0, 2]
    x, y = layer(run, 0), layer(run, 2)
    expected = Ridge(alpha=5.0, fit_intercept=False, solver="svd").fit(x, y).coef_.T
    assert found.method == "cholesky"
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-9)
    tiny = fit(run, ridge=1e-12)[0, 2]
    assert tiny.method == "svd"
    np.testing.assert_allclose(tiny.matrix, lstsq(run, 0, 2), rtol=1e-7, atol=1e-9)


def test_rows_in_another_order_or_added_up_give_the_same_maps() -> None:
    run = run_of(n=200, width=6, layers=4)
    parts = [
        gram(MemoryRun({"resid": {k: v[s] for k, v in run.arrays["resid"].items()}}))
        for s in (slice(120, 200), slice(0, 70), slice(70, 120))
    ]
    maps, added = fit(run), fit(parts[0] + parts[1] + parts[2])
    assert added.provenance["n"] == 200
    for pair in maps:
        np.testing.assert_allclose(added[pair].matrix, maps[pair].matrix, rtol=1e-9, atol=1e-12)


def test_pairs_by_name_and_by_list() -> None:
    run = run_of(layers=4)
    assert list(fit(run, pairs="adjacent")) == [(0, 1), (1, 2), (2, 3)]
    assert list(fit(run, pairs="to_last")) == [(0, 3), (1, 3), (2, 3)]
    assert len(fit(run, pairs="ordered")) == 12
    back = fit(run, pairs=[(3, 1), (0, 2), (3, 1)])
    assert sorted(back) == [(0, 2), (3, 1)]
    np.testing.assert_allclose(back[3, 1].matrix, lstsq(run, 3, 1), rtol=1e-8, atol=1e-10)
    assert (3, 1) in back
    assert (1, 3) not in back
    assert 5 not in back
    with pytest.raises(KeyError, match="no map 1 → 3"):
        back[1, 3]


def test_only_the_layers_asked_for_are_read() -> None:
    run = run_of(layers=6)
    fit(run, pairs=[(1, 4)])
    few = run.reads
    fit(run)
    assert few < (run.reads - few) / 2


def test_requests_that_cannot_be_met_say_why() -> None:
    run = run_of()
    with pytest.raises(SiteError, match=r"layer 13 asked for, but m has layers 0…2 \(0 is the emb"):
        fit(run, pairs=[(0, 13)])
    with pytest.raises(SiteError, match="layer 13 asked for, but m has layers 0…2"):
        fit(gram(run), pairs=[(0, 13)])
    with pytest.raises(FitError, match="pairs='some' is not known"):
        fit(run, pairs="some")
    with pytest.raises(FitError, match="3 is not a pair"):
        fit(run, pairs=[3])
    with pytest.raises(FitError, match="no pairs asked for"):
        fit(run, pairs=[])
    with pytest.raises(FitError, match="needs two layers or more"):
        fit(run, layers=[1])
    with pytest.raises(FitError, match=r"ridge=-1: α is a number ≥ 0"):
        fit(run, ridge=-1)
    with pytest.raises(FitError, match="a Run or a Gram is needed, not ndarray"):
        fit(np.zeros((3, 3)))  # type: ignore[arg-type]


def test_a_good_gram_alone_does_not_warn() -> None:
    alone = gram(run_of())
    alone.run = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = fit(alone)
    assert {m.method for m in maps.values()} == {"cholesky"}
    assert 1 <= maps[0, 1].condition < 1e3


def test_float32_products_give_rougher_maps_and_say_so() -> None:
    run = run_of(n=400, width=8)
    rough, exact = fit(gram(run, precision="float32")), fit(run)
    assert rough.provenance["precision"] == "float32"
    x = layer(run, 0)
    error = np.abs(x @ (rough[0, 2].matrix - exact[0, 2].matrix)).max()
    assert 1e-12 < error / np.abs(layer(run, 2)).max() < 1e-4
