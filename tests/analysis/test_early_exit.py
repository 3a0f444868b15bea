"""Early exit against a walk up the layers in Python floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from analysis_fakes import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import AnalysisError
from analysis import early_exit, prediction, results, stats


def softmax(z: np.ndarray) -> np.ndarray:
    weights = np.exp(z - z.max())
    return weights / weights.sum()


def walk(run: Any, maps: Any, model: Any, shortcut: str, lambda_: float) -> list[tuple[int, bool]]:
    """(layer left at, whether its token is the model's own) of each sample."""
    positions = run.samples.position.values
    length = sum(int(t) + 1 for t in positions) / len(positions)
    found = []
    for i, t in enumerate(positions):
        final = model.decode(run.states[-1, i][None])[0]
        for layer in range(1, 4):
            state = run.states[layer, i][None]
            if shortcut == "mat" and layer < 3:
                state = maps[layer, 3](state)
            p = softmax(model.decode(state)[0].astype(np.float64))
            first, second = sorted(p)[-1], sorted(p)[-2]
            limit = 0.9 * lambda_ + 0.1 * math.exp(-4 * int(t) / length)
            if layer == 3 or first - second > limit:
                found.append((layer, int(p.argmax()) == int(final.argmax())))
                break
    return found


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_the_sweep_equals_the_walk(seed: int) -> None:
    run, maps, model = tiny(n=25, seed=seed)
    got = early_exit.sweep(run, maps, model, resamples=20, progress=False)
    documents = run.samples.document.values
    for shortcut in ("mat", "id"):
        for lambda_ in early_exit.LAMBDAS[shortcut]:
            plain = walk(run, maps, model, shortcut, lambda_)
            at = got.sel(shortcut=shortcut).sel({"lambda": lambda_})
            assert float(at.blocks) == pytest.approx(np.mean([layer for layer, _ in plain]))
            assert float(at.precision) == pytest.approx(np.mean([hit for _, hit in plain]))
            interval = stats.proportion([hit for _, hit in plain], documents)
            assert float(at.precision_low) == pytest.approx(float(interval.low))
            shares = [np.mean([left == layer for left, _ in plain]) for layer in range(4)]
            np.testing.assert_allclose(at.exits, shares)
    assert np.isnan(got.blocks.sel(shortcut="mat").sel({"lambda": 1.0112}))
    assert not np.isnan(got.blocks.sel(shortcut="id").sel({"lambda": 1.0112}))
    fixed = prediction.curves(run, maps, model, ks=(1,), progress=False)
    np.testing.assert_allclose(got.fixed_precision, fixed.precision.sel(k=1))


def test_the_paper_sweeps_13_and_22_values() -> None:
    assert len(early_exit.LAMBDAS["mat"]) == 13
    assert len(early_exit.LAMBDAS["id"]) == 22
    assert sum(1 < value < 1.112 for value in early_exit.LAMBDAS["id"]) == 9
    # The ends: never a threshold below −0.8, never one that a confidence of 1 passes.
    assert early_exit.threshold(-1.112, 0, 10) < -0.8
    assert early_exit.threshold(1.112, 1e9, 10) > 1
    assert early_exit.threshold(0.5, 5, 10) == pytest.approx(0.45 + 0.1 * math.exp(-2))


def test_the_ends_of_the_sweep_are_all_and_nothing() -> None:
    run, maps, model = tiny(n=40)
    got = early_exit.sweep(run, maps, model, resamples=20, progress=False)
    ends = got.blocks.sel({"lambda": [-1.112, 1.112]})
    np.testing.assert_array_equal(ends, [[1, 3], [1, 3]])
    assert (got.precision.sel({"lambda": 1.112}) == 1).all()
    assert (got.blocks.diff("lambda").fillna(0) >= 0).all()


def test_saved_layers_are_read_off_the_curve_by_straight_lines() -> None:
    cost = np.array([[1.0, 2.0, 4.0]])
    accuracy = np.array([[0.5, 0.9, 1.0]])
    found = early_exit.crossing(cost, accuracy, [0.4, 0.7, 0.9, 0.95, 1.0])
    np.testing.assert_allclose(found, [[1, 1.5, 2, 3, 4]])
    # a dip below the level counts: it must hold from there on
    dips = early_exit.crossing(np.arange(4.0)[None], np.array([[0.9, 0.6, 0.8, 1.0]]), [0.7])
    np.testing.assert_allclose(dips, [[1.5]])
    # points come in any order; a curve that never reaches the level has no answer
    np.testing.assert_allclose(early_exit.crossing(cost[:, ::-1], accuracy[:, ::-1], [0.95]), [[3]])
    assert np.isnan(early_exit.crossing(cost, accuracy - 0.1, [0.95])).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 1.0))
def test_crossing_equals_numpys_interpolation_on_rising_curves(seed: int, level: float) -> None:
    rng = np.random.default_rng(seed)
    accuracy = np.sort(rng.random(6))
    accuracy[-1] = 1
    cost = np.sort(rng.random(6)) * 10
    expected = np.interp(level, accuracy, cost)
    found = early_exit.crossing(cost[None], accuracy[None], [level])
    assert float(found[0, 0]) == pytest.approx(expected)


def test_saved_intervals_are_a_cluster_bootstrap() -> None:
    run, maps, model = tiny(n=60)
    got = early_exit.sweep(run, maps, model, resamples=200, seed=4, levels=(0.8,), progress=False)
    at = got.sel(policy="dynamic", shortcut="mat", level=0.8)
    documents = run.samples.document.values
    names = np.unique(documents)
    plain = {v: walk(run, maps, model, "mat", v) for v in early_exit.LAMBDAS["mat"]}
    rng = np.random.default_rng(0)
    values = []
    for _ in range(300):
        rows = np.concatenate(
            [np.flatnonzero(documents == name) for name in rng.choice(names, len(names))]
        )
        cost = [np.mean([plain[v][i][0] for i in rows]) for v in plain]
        right = [np.mean([plain[v][i][1] for i in rows]) for v in plain]
        values.append(3 - early_exit.crossing(np.array([cost]), np.array([right]), [0.8])[0, 0])
    low, high = np.quantile(values, [0.025, 0.975])
    assert float(at.saved_low) == pytest.approx(low, abs=0.15)
    assert float(at.saved_high) == pytest.approx(high, abs=0.15)
    assert float(at.saved_low) <= float(at.saved) <= float(at.saved_high)
    assert float(at.saved_share) == pytest.approx(float(at.saved) / 3)
    gain = got.saved.sel(shortcut="mat") - got.saved.sel(shortcut="id")
    np.testing.assert_allclose(got.saved_gain, gain)
    again = early_exit.sweep(run, maps, model, resamples=200, seed=4, levels=(0.8,))
    assert again.identical(got)


def test_the_result_is_saved_and_told(tmp_path: Any) -> None:
    run, maps, model = tiny()
    got = early_exit.sweep(run, maps, model, resamples=20, progress=False)
    assert results.load(results.save(got, tmp_path / "r.zarr")).identical(got)
    assert "dynamic  0.95" in early_exit.saved_table(got)
    with pytest.raises(AnalysisError, match=r"levels=\(1.5,\)"):
        early_exit.sweep(run, maps, model, levels=(1.5,))
    with pytest.raises(AnalysisError, match="lambdas for 'id'"):
        early_exit.sweep(run, maps, model, lambdas={"mat": [0.5]})
    one = early_exit.sweep(run, None, model, shortcuts=("id",), lambdas=[0.5], first=2)
    assert "saved_gain" not in one
    assert float(one.exits.sel(layer=[0, 1]).sum()) == 0


def test_a_masked_model_leaves_early_too(case: Any) -> None:
    at = case("bert")
    run = at.held_out
    got = early_exit.sweep(run, at.maps, at.model, lambdas=[0.3], resamples=20, progress=False)
    assert got.attrs["n_blocks"] == 4
    assert float(got.blocks.max()) <= 4
