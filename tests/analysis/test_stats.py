"""Intervals against plain loops, textbook formulas, and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from actstore.errors import AnalysisError, NonFiniteError
from analysis import stats


def plain_clustered_error(values: list[float], labels: list[str]) -> float:
    n = len(values)
    average = sum(values) / n
    sums: dict[str, float] = {}
    for value, label in zip(values, labels, strict=True):
        sums[label] = sums.get(label, 0.0) + value - average
    groups = len(sums)
    return math.sqrt(groups / (groups - 1) * sum(s * s for s in sums.values())) / n


samples = st.lists(
    st.tuples(st.floats(-1e3, 1e3), st.sampled_from("abcde")), min_size=2, max_size=40
).filter(lambda rows: len({label for _, label in rows}) > 1)


@settings(max_examples=50, deadline=None)
@given(samples)
def test_mean_equals_the_plain_loop(rows: list[tuple[float, str]]) -> None:
    values, labels = [list(column) for column in zip(*rows, strict=True)]
    got = stats.mean(values, labels)
    degrees = len(set(labels)) - 1
    spread = scipy_stats.t.ppf(0.975, degrees) * plain_clustered_error(values, labels)
    assert got.value == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert got.high - got.value == pytest.approx(spread, rel=1e-6, abs=1e-9)
    assert got.value - got.low == pytest.approx(spread, rel=1e-6, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=30), st.floats(0.5, 0.99))
def test_singleton_clusters_give_the_usual_t_interval(values: list[float], level: float) -> None:
    got = stats.mean(values, np.arange(len(values))[::-1], level=level)
    again = stats.mean(values, level=level)
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    spread = scipy_stats.t.ppf((1 + level) / 2, len(values) - 1) * error
    assert got.high - got.value == pytest.approx(spread, rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(got, again, rtol=1e-12, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=3, max_size=60))
def test_singleton_clusters_give_wilsons_interval(hits: list[bool]) -> None:
    got = stats.proportion(hits)
    n, p = len(hits), sum(hits) / len(hits)
    q = scipy_stats.t.ppf(0.975, n - 1)
    # The ends solve |p − π| = q √(π(1−π)/n).
    for end in (got.low, got.high):
        assert abs(p - end) == pytest.approx(q * math.sqrt(end * (1 - end) / n), abs=1e-7)
    assert 0 <= got.low <= got.value <= got.high <= 1


def test_leading_axes_are_independent() -> None:
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(2, 3, 50)), rng.integers(0, 9, 50)
    hits = values > 0.3
    for function, data in ((stats.mean, values), (stats.proportion, hits)):
        whole = function(data, labels)
        assert whole.low.shape == (2, 3)
        for i in range(2):
            for j in range(3):
                np.testing.assert_allclose(
                    [part[i, j] for part in whole], function(data[i, j], labels), rtol=1e-12
                )


def test_copies_of_a_sample_add_no_information() -> None:
    rng = np.random.default_rng(1)
    hits = rng.random(80) < 0.3
    once = stats.proportion(hits)
    copied = stats.proportion(np.repeat(hits, 7), np.repeat(np.arange(80), 7))
    assert copied.high - copied.low == pytest.approx(once.high - once.low, rel=0.01)
    assert stats.proportion(np.repeat(hits, 7)).high < copied.high


def test_shares_of_none_and_all_have_honest_intervals() -> None:
    for share in (0, 1):
        alone = stats.proportion(np.full(200, bool(share)))
        grouped = stats.proportion(np.full(200, bool(share)), np.repeat(np.arange(20), 10))
        assert alone.value == grouped.value == share
        # "Rule of three": about 3/n, one-sided; Wilson's two-sided is q²/(n + q²).
        assert alone.high - alone.low == pytest.approx(3.89 / 203.89, rel=0.01)
        assert grouped.high - grouped.low == pytest.approx(4.38 / 24.38, rel=0.01)


def test_one_cluster_says_nothing_about_the_spread() -> None:
    for function in (stats.mean, stats.proportion):
        got = function([True, False, True], ["a", "a", "a"])
        assert got.value == pytest.approx(2 / 3)
        assert np.isnan(got.low)
        assert np.isnan(got.high)


@pytest.mark.parametrize("kind", ["mean", "proportion"])
def test_intervals_cover_as_often_as_they_say(kind: str) -> None:
    rng = np.random.default_rng(2)
    trials, groups = 600, 60
    sizes = rng.integers(1, 10, groups)
    labels = np.repeat(np.arange(groups), sizes)
    covered = naive = 0
    for _ in range(trials):
        shared = rng.normal(size=groups)[labels]
        latent = np.sqrt(0.4) * shared + np.sqrt(0.6) * rng.normal(size=len(labels))
        if kind == "mean":
            truth, values, function = 5.0, latent + 5, stats.mean
        else:
            truth, function = 0.15, stats.proportion
            values = latent > scipy_stats.norm.ppf(1 - truth)
        robust, independent = function(values, labels), function(values)
        covered += robust.low <= truth <= robust.high
        naive += independent.low <= truth <= independent.high
    assert 0.925 <= covered / trials <= 0.98
    assert naive < covered - 30


def test_what_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="1 of 3"):
        stats.mean([1.0, float("nan"), 2.0])
    with pytest.raises(AnalysisError, match="no samples"):
        stats.mean(np.empty((3, 0)))
    with pytest.raises(AnalysisError, match="3 cluster labels"):
        stats.mean([1.0, 2.0, 3.0], ["a", "b"])
    with pytest.raises(AnalysisError, match="between 0 and 1"):
        stats.mean([1.0, 2.0], level=95)
    with pytest.raises(AnalysisError, match="true and false"):
        stats.proportion([0.5, 1.0])
