"""Reduced-rank maps equal the textbook's, computed on the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import FitError
from actstore.fitting import fit, r2_by_rank
from actstore.grams import gram
from tests.grams.gram_fakes import MemoryRun, run_of, stream


def best_of_rank(x: np.ndarray, y: np.ndarray, rank: int, ridge: float) -> np.ndarray:
    """By SVD of the fitted values of the rows with √α I under them."""
    x = np.concatenate([x, np.sqrt(ridge) * np.eye(x.shape[1])])
    y = np.concatenate([y, np.zeros((x.shape[1], y.shape[1]))])
    full = np.linalg.lstsq(x, y, rcond=None)[0]
    vectors = np.linalg.svd(x @ full, full_matrices=False)[2][:rank].T
    return full @ vectors @ vectors.T


@settings(max_examples=30, deadline=None)
@given(
    st.integers(20, 60),
    st.integers(2, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 10.0]),
    st.booleans(),
    st.integers(0, 9),
)
def test_reduced_rank_regression(
    n: int, width: int, rank: int, ridge: float, intercept: bool, seed: int
) -> None:
    layers = stream(n, width, 2, seed=seed)
    arrays = {"resid": {0: layers[0]}, "mlp": {0: layers[1][:, : max(width - 1, 1)]}}
    run = MemoryRun(arrays)
    maps = fit(run, sites=("resid", "mlp"), rank=rank, ridge=ridge, intercept=intercept)
    found = maps[("resid", 0), ("mlp", 0)]
    x, y = (arrays[site][0].astype(np.float64) for site in ("resid", "mlp"))
    means = (x.mean(axis=0), y.mean(axis=0)) if intercept else (0.0, 0.0)
    expected = best_of_rank(x - means[0], y - means[1], rank, ridge)
    scale = np.abs(y).max()
    np.testing.assert_allclose(
        found(x), (x - means[0]) @ expected + means[1], rtol=1e-5, atol=1e-6 * scale
    )
    assert np.linalg.matrix_rank(found.matrix) <= rank
    assert found.rank == min(rank, width)
    assert maps.provenance["rank"] == rank


@pytest.mark.parametrize("intercept", [False, True])
def test_what_each_rank_explains(intercept: bool) -> None:
    train, test = run_of(n=120, seed=1), run_of(n=60, seed=2, mean=20.0)
    full = fit(train, intercept=intercept)
    for rows in (train, test):
        found = r2_by_rank(full, train, None if rows is train else gram(test))
        assert found.dims == ("source", "target", "rank")
        assert found["rank"].values.tolist() == [1, 2, 3, 4, 5]
        for rank in (1, 3, 5):
            reduced = fit(train, intercept=intercept, rank=rank)
            expected = reduced.r2(rows, average="variance")
            np.testing.assert_allclose(
                found.sel(rank=rank, drop=True), expected, rtol=1e-7, atol=1e-7
            )
    assert (np.diff(r2_by_rank(full, train).sel(source=0, target=2)) > -1e-9).all()


def test_ranks_that_are_none_are_refused() -> None:
    run = run_of()
    for rank in (0, 2.5, True, "2"):
        with pytest.raises(FitError, match="highest rank is a whole number ≥ 1"):
            fit(run, rank=rank)  # type: ignore[arg-type]
    with pytest.raises(FitError, match="reduced to rank 2: fit without rank"):
        r2_by_rank(fit(run, rank=2), run)
