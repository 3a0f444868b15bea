"""Ridge paths, cross-validation and intervals equal what is done on the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from actstore.errors import FitError
from actstore.fitting import cross_validate, fit, ridge_path
from actstore.grams import gram
from tests.grams.gram_fakes import MemoryRun, run_of, stream

RIDGES = (0.5, 20.0, 1000.0)


def layer(run: MemoryRun, k: int) -> np.ndarray:
    return run.arrays["resid"][k].astype(np.float64)


def hat_trace(x: np.ndarray, ridge: float, intercept: bool) -> float:
    if intercept:
        x = x - x.mean(axis=0)
    hat = x @ np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T)
    return float(np.trace(hat)) + intercept


@settings(max_examples=25, deadline=None)
@given(st.integers(15, 60), st.integers(1, 6), st.booleans(), st.integers(0, 9))
def test_a_path_is_scikit_learns_ridge(n: int, width: int, intercept: bool, seed: int) -> None:
    run, other = run_of(n, width, 3, seed=seed), run_of(30, width, 3, seed=seed + 1)
    path = ridge_path(run, RIDGES, intercept=intercept)
    scores, freedom = path.r2(other), path.degrees_of_freedom()
    assert scores.dims == ("ridge", "source", "target")
    assert list(path) == list(RIDGES)
    for ridge, maps in path.items():
        plain = fit(run, ridge=ridge, intercept=intercept)
        for i, j in [(0, 1), (0, 2), (1, 2)]:
            x, y = layer(run, i), layer(run, j)
            model = Ridge(alpha=ridge, fit_intercept=intercept, solver="svd").fit(x, y)
            expected = np.atleast_2d(model.coef_).T
            np.testing.assert_allclose(maps[i, j].matrix, expected, rtol=1e-7, atol=1e-9)
            predicted = maps[i, j](layer(other, i))
            np.testing.assert_allclose(
                predicted, model.predict(layer(other, i)).reshape(-1, width), rtol=1e-7, atol=1e-6
            )
            at = float(scores.sel(ridge=ridge, source=i, target=j))
            assert at == pytest.approx(r2_score(layer(other, j), predicted), rel=1e-8, abs=1e-8)
            trace = hat_trace(x, ridge, intercept)
            for found in (maps[i, j], plain[i, j]):
                assert found.degrees_of_freedom == pytest.approx(trace, rel=1e-8)
                assert found.ridge == ridge
            assert float(freedom.sel(ridge=ridge, source=i)) == pytest.approx(trace, rel=1e-8)
    np.testing.assert_allclose(scores.sel(ridge=20.0), path[20.0].r2(other), rtol=1e-8)


def test_degrees_of_freedom_without_ridge_are_the_rank() -> None:
    layers = stream(80, 8, 2)
    layers[0][:, 5] = layers[0][:, 2]
    run = MemoryRun({"resid": layers})
    assert fit(run)[0, 1].degrees_of_freedom == pytest.approx(7)
    assert fit(run, intercept=True)[0, 1].degrees_of_freedom == pytest.approx(8)
    assert fit(run_of(n=4, width=6), intercept=True)[0, 1].degrees_of_freedom == pytest.approx(4)
    assert ridge_path(run, [0.0])[0.0][0, 1].degrees_of_freedom == pytest.approx(7)
    tiny = fit(run, ridge=1e-12)[0, 1]
    assert (tiny.method, round(tiny.degrees_of_freedom)) == ("svd", 7)


def test_any_value_of_a_path_can_be_had() -> None:
    run = run_of(n=60)
    path = ridge_path(run, RIDGES, pairs=[(0, 2)])
    np.testing.assert_allclose(
        path.maps(7.0)[0, 2].matrix, fit(run, ridge=7.0)[0, 2].matrix, rtol=1e-8
    )
    assert repr(path).endswith("3 values of ridge from 0.5 to 1000>")
    with pytest.raises(KeyError, match=r"ridge 7\.0 is not one of 0\.5, 20, 1000"):
        path[7.0]
    with pytest.raises(KeyError, match="no map 2 → 0"):
        path[0.5][2, 0]


@settings(max_examples=10, deadline=None)
@given(st.integers(30, 60), st.integers(1, 4), st.booleans(), st.integers(0, 9))
def test_cross_validation_is_leaving_rows_out(
    n: int, width: int, intercept: bool, seed: int
) -> None:
    run = run_of(n, width, 2, seed=seed, document=np.arange(n) // 2)
    fold = np.arange(n) % 4
    moments = gram(run, parts=fold)
    found = cross_validate(moments, RIDGES, intercept=intercept)
    each = cross_validate(moments, RIDGES, intercept=intercept, average=None)
    weighted = cross_validate(moments, RIDGES, intercept=intercept, average="variance")
    x, y = layer(run, 0), layer(run, 1)
    for ridge in RIDGES:
        model = Ridge(alpha=ridge, fit_intercept=intercept, solver="svd")
        predicted = np.empty_like(y)
        for k in range(4):
            fitted = model.fit(x[fold != k], y[fold != k])
            predicted[fold == k] = fitted.predict(x[fold == k]).reshape(-1, width)
        for result, kind in (
            (found, "uniform_average"),
            (each, "raw_values"),
            (weighted, "variance_weighted"),
        ):
            at = result.sel(ridge=ridge, source=0, target=1)
            np.testing.assert_allclose(
                at, r2_score(y, predicted, multioutput=kind), rtol=1e-7, atol=1e-7
            )


def test_the_best_ridge_is_taken_for_each_pair() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 12)).astype(np.float32)
    clear = (x @ rng.standard_normal((12, 3))).astype(np.float32)
    noise = rng.standard_normal((60, 3)).astype(np.float32)
    run = MemoryRun({"resid": {0: x}, "mlp": {0: clear, 1: noise}})
    ridges = [1e-3, 30.0, 1e5]
    moments = gram(run, sites=("resid", "mlp"), parts=5)
    pairs = [(("resid", 0), ("mlp", 0)), (("resid", 0), ("mlp", 1))]
    maps = fit(moments, ridge=ridges, pairs=pairs)
    assert [maps[pair].ridge for pair in pairs] == [1e-3, 1e5]
    assert "ridge of 3 values" in repr(maps)
    for pair in pairs:
        alone = fit(moments, ridge=maps[pair].ridge, pairs=[pair])
        np.testing.assert_array_equal(maps[pair].matrix, alone[pair].matrix)
    assert maps.provenance["ridge"] == ridges
    again = fit(run_of(n=60), ridge=[1.0, 2.0])
    assert {m.ridge for m in again.values()} <= {1.0, 2.0}


def test_ridges_that_cannot_be_met_are_said() -> None:
    run = run_of(n=60)
    with pytest.raises(FitError, match=r"keeps no parts: compute it with gram\(run, parts=5\)"):
        fit(gram(run), ridge=[1.0, 2.0])
    with pytest.raises(FitError, match="keeps no parts"):
        cross_validate(gram(run), [1.0])
    with pytest.raises(FitError, match="ridge='cv': α is a number ≥ 0"):
        fit(run, ridge="cv")  # type: ignore[arg-type]
    with pytest.raises(FitError, match="no ridge values given"):
        ridge_path(run, [])
    with pytest.raises(FitError, match=r"ridge=-1\.0: α is a number"):
        ridge_path(run, [1.0, -1.0])
    with pytest.raises(FitError, match=r"ridges=3\.0: give a list"):
        ridge_path(run, 3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("average", ["uniform", "variance"])
def test_the_jackknife_is_leaving_parts_out(average: str) -> None:
    train, test = run_of(n=200, seed=1), run_of(n=90, seed=2, mean=500.0)
    maps = fit(train, intercept=True, ridge=1.0)
    part = np.repeat([0, 1, 2, 3], [40, 25, 15, 10])
    found = maps.r2_interval(gram(test, parts=part), level=0.9, average=average)
    kind = {"uniform": "uniform_average", "variance": "variance_weighted"}[average]
    for i, j in [(0, 2), (1, 2)]:
        y, predicted = layer(test, j), maps[i, j](layer(test, i))

        def score(rows: np.ndarray, y: np.ndarray = y, p: np.ndarray = predicted) -> float:
            return float(r2_score(y[rows], p[rows], multioutput=kind))

        full = score(np.full(90, True))
        h = 90 / np.bincount(part)
        left = np.array([score(part != k) for k in range(4)])
        pseudo = h * full - (h - 1) * left
        centre = 4 * full - ((1 - 1 / h) * left).sum()
        error = np.sqrt(((pseudo - centre) ** 2 / (h - 1)).mean())
        at = found.sel(source=i, target=j)
        assert float(at.r2) == pytest.approx(full, rel=1e-8)
        assert float(at.standard_error) == pytest.approx(error, rel=1e-5)
        assert float(at.high - at.low) == pytest.approx(2 * 2.353363 * error, rel=1e-5)
    assert np.isnan(found.r2.sel(source=1, target=1))
    assert found.attrs["parts"] == 4


def test_intervals_cover_about_as_often_as_they_say() -> None:
    maps = fit(run_of(n=400, seed=7, width=3))
    truth = float(maps.r2(run_of(n=40_000, seed=7, width=3)).sel(source=0, target=2))
    large = stream(40_000, 3, 3, seed=7)
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        rows = rng.choice(40_000, 300, replace=False)
        test = MemoryRun({"resid": {k: v[rows] for k, v in large.items()}})
        at = maps.r2_interval(test, level=0.9).sel(source=0, target=2)
        covered += bool(at.low <= truth <= at.high)
    assert 46 <= covered <= 60


def test_intervals_that_cannot_be_had_are_said() -> None:
    run = run_of(n=60)
    maps = fit(run)
    with pytest.raises(FitError, match=r"gram\(run, parts=10\)"):
        maps.r2_interval(gram(run))
    with pytest.raises(FitError, match=r"level=95: give a coverage between 0 and 1"):
        maps.r2_interval(run, level=95)
    with pytest.raises(FitError, match="average=None is not known: choose 'uniform' or 'variance'"):
        maps.r2_interval(run, average=None)  # type: ignore[arg-type]
