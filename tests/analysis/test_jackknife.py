"""The grouped jackknife against the textbook's, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from actstore.errors import AnalysisError
from analysis import jackknife, stats


def left_out_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.array([values[groups != group].mean() for group in np.unique(groups)])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 5))
def test_of_a_mean_over_equal_groups_it_is_the_cluster_interval(
    seed: int, count: int, size: int
) -> None:
    values = np.random.default_rng(seed).normal(size=count * size)
    groups = np.arange(count * size) % count
    found = jackknife.interval(values.mean(), left_out_means(values, groups), [size] * count)
    np.testing.assert_allclose(found, stats.mean(values, groups), rtol=1e-9, atol=1e-12)


def test_groups_of_several_sizes_follow_the_formula() -> None:
    values = np.array([1.0, 4.0, 2.0, 8.0, 3.0, 9.0])
    groups = np.array([0, 0, 0, 1, 1, 2])
    full, left = values.mean(), left_out_means(values, groups)
    h = 6 / np.array([3, 2, 1])
    pseudo = h * full - (h - 1) * left
    centre = 3 * full - sum((1 - 1 / h[j]) * left[j] for j in range(3))
    variance = sum((pseudo[j] - centre) ** 2 / (h[j] - 1) for j in range(3)) / 3
    found = jackknife.interval(full, left, [3, 2, 1], level=0.9)

    assert float(found.high - full) == pytest.approx(t.ppf(0.95, 2) * variance**0.5)


def test_arrays_go_element_by_element_and_one_group_says_nothing() -> None:
    value, left = np.array([1.0, 2.0]), np.array([[1.1, 2.0], [0.9, 2.0], [1.0, 2.0]])
    found = jackknife.interval(value, left, [4, 4, 4])
    alone = jackknife.interval(value[0], left[:, 0], [4, 4, 4])
    assert found.low[0] == alone.low
    assert found.low[1] == found.high[1] == 2
    assert np.isnan(jackknife.interval(1.0, [1.0], [5]).low)
    assert np.isnan(jackknife.interval(1.0, np.empty(0), []).high)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(AnalysisError, match="left_out of shape"):
        jackknife.interval(1.0, [1.0, 2.0], [1, 1, 1])
    with pytest.raises(AnalysisError, match="without samples"):
        jackknife.interval(1.0, [1.0, 2.0], [1, 0])
    with pytest.raises(AnalysisError, match="level 95"):
        jackknife.interval(1.0, [1.0, 2.0], [1, 1], level=95)
