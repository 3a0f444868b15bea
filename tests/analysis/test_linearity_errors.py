"""The errors of single tokens against the errors of every row, and the classes of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t
from stored_runs import stored_run, stream

import actstore
from actstore.errors import AnalysisError
from analysis import linearity, tokens
from analysis.linearity.tally import FINE, Tally, coarse, coarse_edges, quantile

N = 120
TEXTS = np.array([" the", "ing", ",", " 19", "7", "<s>", " cat", "s"] * 15, object)


@pytest.fixture(scope="module")
def states() -> np.ndarray:
    return stream(N, 4, 2)


@pytest.fixture(scope="module")
def run(states: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> actstore.Run:
    folder = tmp_path_factory.mktemp("s") / "s.zarr"
    return stored_run(
        folder, states, {"token": TEXTS, "token_id": np.arange(N, dtype=np.int32) % 8}
    )


def plain_errors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """‖x_i A + b − y_i‖ over the root mean square of ‖y − ȳ‖, by least squares over the rows."""
    design = np.column_stack([x.astype(float), np.ones(len(x))])
    y = y.astype(float)
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    sizes = np.linalg.norm(design @ solution - y, axis=1)
    return sizes / np.sqrt(((y - y.mean(axis=0)) ** 2).sum() / len(y))


def test_quantiles_and_squares_are_those_of_the_rows(run: actstore.Run, states: np.ndarray) -> None:
    found = linearity.errors(run, progress=False)
    assert found.attrs["kind"] == "linearity_errors"
    scores = linearity.scores(run, progress=False)
    masks = tokens.classes(run)
    assert found["class"].values.tolist() == list(masks)
    for layer in (0, 1):
        rows = plain_errors(states[layer], states[layer + 1])
        at = found.isel(step=layer)
        assert (int(at.source), int(at.target)) == (layer, layer + 1)
        whole = at.sel({"class": "all"})
        assert float(whole.mean_square) == pytest.approx(1 - float(scores.score[layer]), rel=1e-9)
        for name, mask in masks.items():
            inside = at.sel({"class": name})
            assert int(inside["count"]) == mask.sum()
            assert float(inside.mean_square) == pytest.approx((rows[mask] ** 2).mean(), rel=1e-9)
            share = (rows[mask] ** 2).sum() / (rows**2).sum()
            assert float(inside.share_of_error) == pytest.approx(share, rel=1e-9)
            for level in (0.25, 0.5, 0.95):
                exact = np.quantile(rows[mask], level, method="inverted_cdf")
                assert float(inside.error.sel(quantile=level)) == pytest.approx(exact, rel=0.012)
            edges = np.append(inside.error_from, np.inf)
            np.testing.assert_array_equal(inside.histogram, np.histogram(rows[mask], edges)[0])
    assert (found.error_low <= found.error + 1e-12).all()
    assert (found.mean_square_low < found.mean_square).all()
    few = linearity.errors(run, memory=1, progress=False)
    np.testing.assert_allclose(few.error, found.error)


def test_interval_of_the_mean_square_is_the_jackknife(
    run: actstore.Run, states: np.ndarray
) -> None:
    found = linearity.errors(run, parts=40, progress=False)
    squares = plain_errors(states[0], states[1]) ** 2
    documents = np.arange(N) // 3
    left = np.array([squares[documents != d].mean() for d in range(40)])
    error = np.sqrt(39 / 40 * ((left - left.mean()) ** 2).sum())
    reach = student_t.ppf(0.975, 39) * error
    at = found.isel(step=0).sel({"class": "all"})
    assert float(at.mean_square_high - at.mean_square) == pytest.approx(reach, rel=1e-9)


def test_errors_by_a_tokens_own_size_and_of_maps_from_elsewhere(
    run: actstore.Run, states: np.ndarray
) -> None:
    maps = actstore.fit(run.isel(sample=slice(60)), pairs=[(0, 2)], intercept=True)
    rest = run.isel(sample=slice(60, None))
    found = linearity.errors(
        rest, maps=maps, pairs=[(0, 2)], normalise="token", quantiles=[0.5], progress=False
    )
    x, y = states[0, 60:].astype(float), states[2, 60:].astype(float)
    own = np.linalg.norm(y - y.mean(axis=0), axis=1)
    rows = np.linalg.norm(maps[0, 2](x) - y, axis=1) / own
    exact = np.quantile(rows, 0.5, method="inverted_cdf")
    assert float(found.error[0, 0, 0]) == pytest.approx(exact, rel=0.012)
    assert found.attrs["in_sample"] == 0
    with pytest.raises(AnalysisError, match="no map 0 → 1"):
        linearity.errors(rest, maps=maps, progress=False)


def test_a_target_that_does_not_vary_has_no_errors(tmp_path: Path, states: np.ndarray) -> None:
    still = np.stack([states[0], np.ones_like(states[0])])
    found = linearity.errors(stored_run(tmp_path / "s.zarr", still), progress=False)
    assert np.isnan(found.error).all()
    assert np.isnan(found.mean_square).all()


def test_what_cannot_be_asked_for_is_refused(run: actstore.Run) -> None:
    with pytest.raises(AnalysisError, match="normalise='rms'"):
        linearity.errors(run, normalise="rms")
    with pytest.raises(AnalysisError, match="between 0 and 1"):
        linearity.errors(run, quantiles=[50])
    with pytest.raises(AnalysisError, match="expected one bool for each of the 120"):
        linearity.errors(run, classes={"odd": np.ones(7, bool)})


def test_classes_by_text_position_and_frequency(run: actstore.Run) -> None:
    found = tokens.classes(run)
    assert found["first token"].sum() == 40
    expected = {
        "special": ["<s>"],
        "punctuation": [","],
        "number": [" 19", "7"],
        "word start": [" cat", " the"],
        "continuation": ["ing", "s"],
    }
    for name, texts in expected.items():
        assert sorted(set(TEXTS[found[name]])) == texts
    assert sum(found[kind].sum() for kind in expected) == N
    pieces = tokens.token_kinds(np.array(["play", "##ing", "[CLS]", "##7", "##", "[nH]"], object))
    assert pieces.tolist() == [
        "word start",
        "continuation",
        "special",
        "number",
        "punctuation",
        "word start",
    ]
    letters = tokens.token_kinds(np.array(["C", "(", "1"], object))
    assert letters.tolist() == ["word start", "punctuation", "number"]
    ids = np.array([5] * 6 + [7] * 2 + [8] * 2 + [1, 2, 3])
    assert tokens.frequency_bands(ids).tolist() == [2] * 6 + [1] * 4 + [0] * 3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(1e-7, 1e5) | st.just(0.0), min_size=1, max_size=60),
    st.integers(1, 59),
    st.floats(0, 1),
)
def test_tallies_add_up_and_keep_the_quantiles(values: list[float], cut: int, level: float) -> None:
    array = np.array(values)
    masks, groups = np.ones((1, len(array)), bool), np.zeros(len(array), np.intp)
    whole, parts = Tally(1, 1), Tally(1, 1)
    whole.add(array, masks, groups)
    for piece in (slice(cut), slice(cut, None)):
        parts.add(array[piece], masks[:, piece], groups[piece])
    np.testing.assert_array_equal(whole.counts, parts.counts)
    np.testing.assert_allclose(whole.squares, parts.squares)
    exact = np.quantile(array, level, method="inverted_cdf")
    found = float(quantile(whole.counts.sum(axis=1), [level])[0, 0])
    if 1e-6 < exact < 1e4:
        assert abs(np.log10(found / exact)) <= 1 / FINE + 1e-9
    else:
        assert found == 0 if exact < 1 else found in (np.inf, pytest.approx(1e4, rel=0.02))
    wide = coarse(whole.counts)
    assert wide.sum() == len(array)
    assert wide.shape[-1] == len(coarse_edges()) - 1
