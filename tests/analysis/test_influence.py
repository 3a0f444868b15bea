"""Block influence and angular distance against loops over rows."""

from __future__ import annotations

from math import acos, pi
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import stored_run, stream

import actstore
from actstore.errors import AnalysisError, NonFiniteError
from analysis import influence, stats


def plain_cosine(x: np.ndarray, y: np.ndarray) -> float:
    dot = sum(float(a) * float(b) for a, b in zip(x, y, strict=True))
    sizes = [sum(float(a) ** 2 for a in v) ** 0.5 for v in (x, y)]
    return max(-1.0, min(1.0, dot / (sizes[0] * sizes[1])))


@pytest.fixture(scope="module")
def states() -> np.ndarray:
    return stream(40, 5, 4, seed=2)


@pytest.fixture(scope="module")
def run(states: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> actstore.Run:
    return stored_run(tmp_path_factory.mktemp("s") / "s.zarr", states)


def test_block_influence_is_the_mean_of_one_less_cosines(
    run: actstore.Run, states: np.ndarray
) -> None:
    found = influence.block_influence(run, progress=False)
    assert found.attrs["kind"] == "influence"
    for layer in range(4):
        values = [1 - plain_cosine(states[layer, k], states[layer + 1, k]) for k in range(40)]
        expected = stats.mean(values, np.arange(40) // 3)
        at = found.sel(source=layer)
        for name, value in zip(("", "_low", "_high"), expected, strict=True):
            assert float(at["influence" + name]) == pytest.approx(float(value), rel=1e-9)
        assert int(at.target) == layer + 1
    few = influence.block_influence(run, memory=1, progress=False)
    np.testing.assert_allclose(few.influence, found.influence, rtol=1e-12)


def test_angular_distance_of_every_span(run: actstore.Run, states: np.ndarray) -> None:
    found = influence.angular_distance(run, progress=False)
    assert found.distance.dims == ("span", "source")
    for span in range(1, 5):
        for source in range(4):
            at = found.sel(span=span, source=source)
            if source + span > 4:
                assert np.isnan(at.distance)
                continue
            pairs = zip(states[source], states[source + span], strict=True)
            expected = np.mean([acos(plain_cosine(x, y)) / pi for x, y in pairs])
            assert float(at.distance) == pytest.approx(expected, rel=1e-9)
    two = influence.angular_distance(run, 2, progress=False)
    np.testing.assert_allclose(two.distance[0], found.distance.sel(span=2))
    with pytest.raises(AnalysisError, match=r"lies in 1…4"):
        influence.angular_distance(run, [1, 5])
    with pytest.raises(AnalysisError, match="without gaps"):
        influence.angular_distance(run.sel(layer=[0, 2, 3]))


def test_rows_without_a_direction_are_left_out_and_counted(tmp_path: Path) -> None:
    states = stream(12, 3, 2)
    states[0, 4] = 0
    states[2, 7] = 0
    states[1, 5] = 1e-30
    run = stored_run(tmp_path / "s.zarr", states)
    found = influence.block_influence(run, progress=False)
    assert found.left_out.values.tolist() == [1, 1]
    for layer, missing in ((0, 4), (1, 7)):
        kept = [k for k in range(12) if k != missing]
        expected = np.mean([1 - plain_cosine(states[layer, k], states[layer + 1, k]) for k in kept])
        assert float(found.influence.sel(source=layer)) == pytest.approx(expected, rel=1e-9)


def test_a_layer_of_zeros_has_no_influence_to_speak_of(tmp_path: Path) -> None:
    states = stream(12, 3, 1)
    states[1] = 0
    run = stored_run(tmp_path / "s.zarr", states)
    found = influence.block_influence(run, progress=False)
    assert np.isnan(found.influence.values).all()
    assert found.left_out.values.tolist() == [12]


def test_many_clusters_are_dealt_out_and_one_has_no_interval(
    run: actstore.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = influence.block_influence(run, cluster=None, progress=False)
    monkeypatch.setattr(influence, "MOST_GROUPS", 10)
    dealt = influence.block_influence(run, cluster=None, progress=False)
    assert dealt.attrs["clusters"] == 10
    np.testing.assert_allclose(dealt.influence, whole.influence, rtol=1e-12)
    widths = (dealt.influence_high - dealt.influence_low) / (
        whole.influence_high - whole.influence_low
    )
    assert (abs(np.log(widths)) < 1).all()
    one = influence.block_influence(run.sel(document=0), progress=False)
    assert np.isnan(one.influence_low).all()
    assert not np.isnan(one.influence).any()


def test_what_cannot_be_measured_is_refused(run: actstore.Run) -> None:
    with pytest.raises(AnalysisError, match="two layers"):
        influence.block_influence(run.sel(layer=1))
    with pytest.raises(AnalysisError, match="no sample coordinate 'article'"):
        influence.block_influence(run, cluster="article")
    dropped = influence.block_influence(run, first_token="drop", progress=False)
    assert (dropped.attrs["samples"], dropped.attrs["dropped"]) == (26, 14)


def test_states_that_are_not_finite_are_named(run: actstore.Run) -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(run, name)

        def read(self, site: str, layer: int, block: object) -> np.ndarray:
            values = run.read(site, layer, block)
            return values * (np.nan if layer == 3 else 1)

    with pytest.raises(NonFiniteError, match="layer 3"):
        influence.block_influence(Broken(), progress=False)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_neither_scale_nor_rotation_matters(
    tmp_path_factory: pytest.TempPathFactory, seed: int, factor: float
) -> None:
    states = stream(9, 4, 2, seed=seed)
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(4, 4)))[0]
    folder = tmp_path_factory.mktemp("s")
    turned = (factor * states @ rotation).astype(np.float32)
    first = stored_run(folder / "a.zarr", states)
    second = stored_run(folder / "b.zarr", turned)
    a, b = (influence.block_influence(run, progress=False).influence for run in (first, second))
    np.testing.assert_allclose(a, b, atol=1e-5)
    c = influence.angular_distance(first, progress=False).distance
    assert ((c >= 0) & (c <= 1) | np.isnan(c)).all()
