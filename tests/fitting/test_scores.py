"""r² from a Gram equals r² from the rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import r2_score

from actstore.errors import FitError, SiteError
from actstore.fitting import fit, identity_r2
from actstore.grams import gram
from tests.grams.gram_fakes import MemoryRun, run_of, stream


def layer(run: MemoryRun, k: int) -> np.ndarray:
    return run.arrays["resid"][k].astype(np.float64)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 60),
    st.integers(2, 40),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([0.0, 10.0]),
    st.sampled_from([0.0, 3.0, 1000.0]),
    st.integers(0, 9),
)
def test_held_out_r2_is_scikit_learns(
    n: int, held_out: int, width: int, intercept: bool, ridge: float, mean: float, seed: int
) -> None:
    both = stream(n + held_out, width, 3, seed=seed, mean=mean)
    train, test = (
        MemoryRun({"resid": {k: v[part] for k, v in both.items()}}, shard_rows=16)
        for part in (slice(n), slice(n, None))
    )
    maps = fit(train, intercept=intercept, ridge=ridge)
    found, each = maps.r2(test), maps.r2(gram(test), average=None)
    weighted = maps.r2(test, average="variance")
    assert found.dims == ("source", "target")
    assert np.isnan(found.sel(source=1, target=1))
    for i, j in maps:
        y, predicted = layer(test, j), maps[i, j](layer(test, i))
        for result, average in (
            (found, "uniform_average"),
            (weighted, "variance_weighted"),
            (each, "raw_values"),
        ):
            expected = r2_score(y, predicted, multioutput=average)
            tolerance = 1e-9 * (1 + np.abs(1 - expected).max())
            at = result.sel(source=i, target=j)
            np.testing.assert_allclose(at, expected, rtol=1e-8, atol=tolerance)


def test_the_baseline_is_the_source_itself() -> None:
    run = run_of(n=80, layers=4, mean=100.0)
    found = identity_r2(run)
    each = identity_r2(gram(run), pairs=[(3, 1)], average=None)
    for i, j in [(0, 1), (1, 3)]:
        expected = r2_score(layer(run, j), layer(run, i))
        assert float(found.sel(source=i, target=j)) == pytest.approx(expected, rel=1e-10)
    expected = r2_score(layer(run, 1), layer(run, 3), multioutput="raw_values")
    np.testing.assert_allclose(each.sel(source=3, target=1), expected, rtol=1e-9)
    np.testing.assert_array_equal(found.source, fit(run).r2(run).source)


def test_widths_that_differ_have_no_baseline() -> None:
    run = MemoryRun({"attn": stream(50, 5, 1), "mlp": stream(50, 3, 1, seed=1)})
    maps = fit(run)
    assert maps.r2(run).dims == ("source", "target")
    assert maps.r2(run).target.values.tolist() == ["mlp.0"]
    assert np.isnan(identity_r2(run)).all()
    assert maps.r2(run, average=None).shape == (1, 1, 3)


def test_constant_coordinates_follow_scikit_learn() -> None:
    layers = stream(60, 4, 2)
    layers[0][:, 0] = 1.0
    layers[1][:, 1] = 0.1
    layers[1][:, 2] = 0.0
    run = MemoryRun({"resid": layers})
    maps = fit(run)
    met = maps.r2(run, average=None).sel(source=0, target=1).values
    np.testing.assert_array_equal(met[1:3], [1, 1])
    assert 0 < met[0] < 1
    moved = {**layers, 1: layers[1] + np.float32(0.5)}
    missed = maps.r2(MemoryRun({"resid": moved}), average=None).sel(source=0, target=1).values
    np.testing.assert_array_equal(missed[1:3], [0, 0])


def test_a_perfect_map_scores_one_in_spite_of_a_large_mean() -> None:
    rng = np.random.default_rng(0)
    x = (rng.integers(-9, 9, (400, 4)) + 4096).astype(np.float32)
    y = (x @ rng.integers(-3, 4, (4, 4))).astype(np.float32)
    run = MemoryRun({"resid": {0: x, 1: y}})
    assert abs(float(fit(run).r2(run).sel(source=0, target=1)) - 1) < 1e-12


def test_the_result_says_where_it_comes_from() -> None:
    result = fit(run_of(corpus="wiki")).r2(run_of(corpus="news", n=30))
    assert (result.attrs["model"], result.attrs["evaluated_on"], result.attrs["n"]) == (
        "m",
        "news",
        30,
    )
    record = json.loads(result.attrs["provenance"])
    assert record["maps"]["runs"][0]["corpus"] == "wiki"
    assert record["evaluation"]["runs"][0]["corpus"] == "news"


def test_rows_that_do_not_fit_the_maps_are_refused() -> None:
    maps = fit(run_of())
    with pytest.raises(SiteError, match=r"layer 2 asked for, but m has layers 0, 1"):
        maps.r2(run_of(layers=2))
    with pytest.raises(FitError, match=r"resid\.0 has 5 features in the maps and 6 in"):
        maps.r2(run_of(width=6))
    with pytest.raises(FitError, match="other weights"):
        maps.r2(run_of(fingerprint="g"))
    with pytest.raises(FitError, match="average='median' is not known"):
        maps.r2(run_of(), average="median")


@pytest.mark.parametrize("intercept", [False, True])
def test_mean_squared_errors_are_those_of_the_rows(intercept: bool) -> None:
    train, test = run_of(n=100, seed=1), run_of(n=50, seed=2, mean=40.0)
    maps = fit(train, intercept=intercept)
    found, each = maps.mse(test), maps.mse(gram(test), average=None)
    for i, j in maps:
        errors = ((layer(test, j) - maps[i, j](layer(test, i))) ** 2).mean(axis=0)
        np.testing.assert_allclose(each.sel(source=i, target=j), errors, rtol=1e-9)
        np.testing.assert_allclose(found.sel(source=i, target=j), errors.mean(), rtol=1e-9)
    assert found.attrs["long_name"] == "mean squared error"
    with pytest.raises(FitError, match="average='variance' is not known"):
        maps.mse(test, average="variance")
