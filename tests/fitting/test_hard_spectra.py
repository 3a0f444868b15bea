"""At any condition r² is float64 SVD's, or a warning says that it may not be."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from actstore.fitting import fit, r2_interval, ridge_path
from actstore.fitting.validation import cross_validate
from actstore.grams import gram
from tests.fitting.spectra import CONDITIONS, adversarial, errors_of
from tests.grams.gram_fakes import run_of


@pytest.mark.parametrize("massive", [False, True])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_with_the_rows_at_hand_it_is_svds(condition: float, massive: bool) -> None:
    train, test = adversarial(condition, massive)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ((first, second),) = errors_of(train, test, gram(train), gram(test)).values()
    limit = 1e-10 if condition < 1e4 and not massive else 1e-7
    assert first < limit
    assert second < limit


@pytest.mark.parametrize("precision", ["float64", "sketch"])
@pytest.mark.parametrize("massive", [False, True])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_gram_alone_is_right_or_warns(condition: float, massive: bool, precision: str) -> None:
    train, test = adversarial(condition, massive)
    grams = [gram(run, precision=precision) for run in (train, test)]
    for one in grams:
        one.run = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ((first, second),) = errors_of(train, test, *grams).values()
        path = ridge_path(grams[0], [0.0])
        by_path = path.r2(grams[1], average=None).values.ravel()
        by_rows = fit(train).r2(test, average=None).values.ravel()
    told = [str(entry.message) for entry in caught]
    if max(first, second) > 1e-6:
        assert any("too ill-conditioned for their Gram alone" in text for text in told)
    if np.abs(by_path - by_rows).max() > 1e-6:
        assert any("Gram's eigenvalues" in text for text in told)
    if condition >= 1e7:
        assert len(told) >= 2
    if condition == 1e1 and not massive:
        assert told == []


def test_scores_of_a_gram_alone_are_right_or_warn_whatever_the_maps() -> None:
    train, test = adversarial(1e9, False)
    maps, alone = fit(train), gram(test, parts=np.arange(3000) % 5)
    alone.run = None
    by_rows = maps.mse(test)
    assert by_rows.item() > 0
    for score in (maps.r2, maps.mse):
        with pytest.warns(UserWarning, match="the maps 0 → 1 have entries so large"):
            score(alone)
    with pytest.warns(UserWarning, match="entries so large"):
        r2_interval(maps, alone)
    x, y = (test.arrays["resid"][k] for k in (0, 1))
    expected = ((y - x @ maps[0, 1].matrix) ** 2).mean()
    np.testing.assert_allclose(by_rows.item(), expected, rtol=1e-10)


def test_weighted_rows_are_scored_by_their_weights() -> None:
    train, test = adversarial(1e9, False)
    weights = np.random.default_rng(0).uniform(0, 2, 3000)
    maps = fit(train, intercept=True)
    x, y = (test.arrays["resid"][k] for k in (0, 1))
    errors = (y - x @ maps[0, 1].matrix - maps[0, 1].bias) ** 2
    expected = np.average(errors, axis=0, weights=weights)
    found = maps.mse(gram(test, weights=weights), average=None).values.ravel()
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_cross_validation_warns_once_of_what_a_gram_does_not_settle() -> None:
    train, _ = adversarial(1e9, False)
    folded = gram(train, parts=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_validate(folded, [0.0])
    assert len([c for c in caught if "Gram's eigenvalues" in str(c.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cross_validate(folded, [1e3])
        cross_validate(gram(run_of(n=300), parts=5), [0.0])
        ridge_path(run_of(n=6, width=12), [0.0]).maps(0.0)
