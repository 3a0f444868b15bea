"""The linearity score against the formula of the paper, written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import procrustes
from scipy.stats import t as student_t
from stored_runs import stored_run, stream

import actstore
from actstore.errors import AnalysisError
from actstore.grams import Column, Columns, Gram, gram
from analysis import linearity
from analysis.windows import grouped

N, WIDTH, LAYERS = 90, 5, 3


def plain_score(x: np.ndarray, y: np.ndarray) -> float:
    """1 − min ‖X̃A − Ỹ‖²_F by least squares over the rows."""
    x, y = (v.astype(np.float64) - v.astype(np.float64).mean(axis=0) for v in (x, y))
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    matrix = np.linalg.lstsq(x, y, rcond=None)[0]
    return 1 - np.linalg.norm(x @ matrix - y) ** 2


@pytest.fixture(scope="module")
def states() -> np.ndarray:
    return stream(N, WIDTH, LAYERS)


@pytest.fixture(scope="module")
def run(states: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> actstore.Run:
    return stored_run(tmp_path_factory.mktemp("s") / "s.zarr", states)


def test_scores_are_the_papers(run: actstore.Run, states: np.ndarray) -> None:
    found = linearity.scores(run, progress=False)
    assert found.attrs["kind"] == "linearity"
    assert found.source.values.tolist() == [0, 1, 2]
    assert found.target.values.tolist() == [1, 2, 3]
    for layer in range(LAYERS):
        x, y = states[layer].astype(float), states[layer + 1].astype(float)
        at = found.sel(source=layer)
        assert float(at.score) == pytest.approx(plain_score(x, y), abs=1e-10)
        assert float(at.score_no_residual) == pytest.approx(plain_score(x, y - x), abs=1e-10)
        assert float(at.orthogonal) == pytest.approx(1 - procrustes(y, x)[2], abs=1e-10)
        ratio = np.linalg.norm(y - x) / np.linalg.norm(x)
        assert float(at.output_over_stream) == pytest.approx(ratio, rel=1e-10)
        centred = [v - v.mean(axis=0) for v in (y, y - x)]
        energy, output = (np.linalg.norm(v) ** 2 for v in centred)
        identity = (1 - float(at.score)) * energy / output
        assert 1 - float(at.score_no_residual) == pytest.approx(identity, rel=1e-9)
    assert (found.orthogonal <= found.score).all()


def test_all_pairs_and_several_windows_agree(run: actstore.Run, states: np.ndarray) -> None:
    every = linearity.scores(run, pairs="all", progress=False)
    assert every.score.dims == ("source", "target")
    assert np.isnan(every.score.sel(source=2, target=1))
    for i, j in ((0, 3), (1, 3), (0, 1)):
        expected = plain_score(states[i], states[j])
        assert float(every.score.sel(source=i, target=j)) == pytest.approx(expected, abs=1e-10)
    few = linearity.scores(run, pairs="all", memory=1, progress=False)
    for name in ("score", "score_low", "orthogonal_high", "output_over_stream"):
        np.testing.assert_allclose(few[name], every[name], rtol=1e-9)


def test_intervals_are_the_jackknife_written_out(run: actstore.Run, states: np.ndarray) -> None:
    found = linearity.scores(run, parts=4, seed=3, progress=False)
    documents = np.arange(N) // 3
    deal = np.empty(30, int)
    deal[np.random.default_rng(3).permutation(30)] = np.arange(30) % 4
    groups = deal[documents]
    full = plain_score(states[1], states[2])
    pseudo, shares = [], []
    for group in range(4):
        keep = groups != group
        share = N / (~keep).sum()
        shares.append(share)
        left = plain_score(states[1][keep], states[2][keep])
        pseudo.append(share * full - (share - 1) * left)
    weights = 1 / np.array(shares)
    centre = (weights * np.array(pseudo)).sum()
    variance = np.mean((np.array(pseudo) - centre) ** 2 / (np.array(shares) - 1))
    reach = student_t.ppf(0.975, 3) * np.sqrt(variance)
    assert float(found.score_low.sel(source=1)) == pytest.approx(full - reach, abs=1e-10)
    assert float(found.score_high.sel(source=1)) == pytest.approx(full + reach, abs=1e-10)


def test_the_rotation_kept_gives_the_jackknifes_interval(
    run: actstore.Run, states: np.ndarray
) -> None:
    found = linearity.scores(run, parts=30, progress=False)
    documents = np.arange(N) // 3
    x, y = states[0].astype(float), states[1].astype(float)
    left = np.array([1 - procrustes(y[documents != d], x[documents != d])[2] for d in range(30)])
    reach = student_t.ppf(0.975, 29) * np.sqrt(29 / 30 * ((left - left.mean()) ** 2).sum())
    assert float(found.orthogonal_high[0] - found.orthogonal[0]) == pytest.approx(reach, rel=0.02)


def test_a_gram_serves_as_well_as_its_run(run: actstore.Run) -> None:
    whole = linearity.scores(run, progress=False)
    bare = linearity.scores(gram(run, cache=False), progress=False)
    np.testing.assert_allclose(bare.score, whole.score, rtol=1e-12)
    plain = linearity.scores(gram(run, cache=False), orthogonal=False)
    assert not any("orthogonal" in str(name) for name in plain)
    assert np.isnan(bare.score_low).all()
    with_parts = linearity.scores(gram(run, parts=5, cache=False), progress=False)
    assert with_parts.attrs["parts"] == 5
    assert (with_parts.score_low < with_parts.score).all()
    np.testing.assert_allclose(linearity.transitions(gram(run, cache=False)), whole.score)
    with pytest.raises(AnalysisError, match="give the run"):
        linearity.scores(gram(run), first_token="drop")


def test_held_out_maps_are_judged_on_other_documents(run: actstore.Run, states: np.ndarray) -> None:
    rest = run.sel(document=slice(0, 19))
    judge = run.sel(document=slice(20, None))
    found = linearity.scores(rest, held_out=judge, progress=False)
    fitted, other = states[:, :60].astype(float), states[:, 60:].astype(float)
    for layer in range(LAYERS):
        design = np.column_stack([fitted[layer], np.ones(60)])
        solution = np.linalg.lstsq(design, fitted[layer + 1], rcond=None)[0]
        x, y = other[layer], other[layer + 1]
        error = ((np.column_stack([x, np.ones(30)]) @ solution - y) ** 2).sum()
        step = y - x
        at = found.sel(source=layer)
        total = ((y - y.mean(axis=0)) ** 2).sum()
        assert float(at.held_out) == pytest.approx(1 - error / total, abs=1e-9)
        output = ((step - step.mean(axis=0)) ** 2).sum()
        assert float(at.held_out_no_residual) == pytest.approx(1 - error / output, abs=1e-9)
    assert (found.held_out_low < found.held_out).all()
    assert (found.held_out < found.score).all()
    grams = [gram(part, parts=5, cache=False) for part in (rest, judge)]
    again = linearity.scores(grams[0], held_out=grams[1], progress=False)
    np.testing.assert_allclose(again.held_out, found.held_out, rtol=1e-9)
    with pytest.raises(AnalysisError, match="the run itself"):
        linearity.scores(run, held_out=run)


def test_held_out_interval_leaves_out_documents_of_the_judge(
    run: actstore.Run, states: np.ndarray
) -> None:
    rest, judge = run.sel(document=slice(0, 19)), run.sel(document=slice(20, None))
    found = linearity.scores(rest, held_out=judge, parts=10, progress=False)
    design = np.column_stack([states[0, :60].astype(float), np.ones(60)])
    solution = np.linalg.lstsq(design, states[1, :60].astype(float), rcond=None)[0]
    x, y = states[0, 60:].astype(float), states[1, 60:].astype(float)
    errors = ((np.column_stack([x, np.ones(30)]) @ solution - y) ** 2).sum(axis=1)

    def share(keep: np.ndarray) -> float:
        return float(1 - errors[keep].sum() / ((y[keep] - y[keep].mean(axis=0)) ** 2).sum())

    full = share(np.ones(30, bool))
    left = np.array([share(np.arange(30) // 3 != document) for document in range(10)])
    reach = student_t.ppf(0.975, 9) * np.sqrt(9 / 10 * ((left - left.mean()) ** 2).sum())
    assert float(found.held_out_low[0]) == pytest.approx(full - reach, abs=1e-9)


def test_the_first_token_can_hide_that_the_rest_is_not_linear(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    y = rng.normal(size=(120, 4))
    x[::3, 0] += 300 + 50 * rng.normal(size=40)
    y[::3] = x[::3]
    run = stored_run(tmp_path / "s.zarr", np.stack([x, y]).astype(np.float32))
    with_sink = linearity.scores(run, progress=False)
    without = linearity.scores(run, first_token="drop", progress=False)
    assert float(with_sink.score[0]) > 0.99
    assert float(without.score[0]) == pytest.approx(
        plain_score(np.delete(x, np.s_[::3], 0), np.delete(y, np.s_[::3], 0)), abs=1e-5
    )
    assert float(without.score[0]) < 0.2
    assert (without.attrs["samples"], without.attrs["dropped"]) == (80, 40)
    two = linearity.scores(run, first_token=2, progress=False)
    assert two.attrs["samples"] == 40
    with pytest.raises(AnalysisError, match="leaves none"):
        linearity.scores(run, first_token=3)
    with pytest.raises(AnalysisError, match="how many positions"):
        linearity.scores(run, first_token="second")


def test_rank_deficient_and_constant_layers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    # Whole numbers, so that float32 keeps the rank.
    low = (rng.integers(-9, 9, (60, 2)) @ rng.integers(-9, 9, (2, 5)) + 7).astype(np.float32)
    full = rng.normal(size=(60, 5)).astype(np.float32)
    full[:, 3] = 1e4
    full[:, 0] *= 1e-4
    still = np.full((60, 5), 3.25, np.float32)
    run = stored_run(tmp_path / "s.zarr", np.stack([low, full, still, low, low]))
    found = linearity.scores(run, pairs="ordered", parts=5, progress=False)
    assert float(found.score.sel(source=0, target=1)) == pytest.approx(
        plain_score(low, full), abs=1e-8
    )
    assert float(found.score.sel(source=1, target=0)) == pytest.approx(
        plain_score(full, low), abs=1e-8
    )
    assert np.isnan(found.score.sel(source=1, target=2))
    assert float(found.score.sel(source=2, target=1)) == 0
    assert float(found.score.sel(source=3, target=4)) == pytest.approx(1, abs=1e-12)
    assert np.isnan(found.score_no_residual.sel(source=3, target=4))
    assert float(found.output_over_stream.sel(source=3, target=4)) == 0


def test_fewer_samples_than_features_are_told_of(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "s.zarr", stream(9, 12, 1))
    with pytest.warns(UserWarning, match="linear in-sample with so few"):
        found = linearity.scores(run, parts=1, progress=False)
    assert float(found.score[0]) == pytest.approx(1, abs=1e-9)
    assert np.isnan(found.score_low[0])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 10), st.integers(1, 5))
def test_invariances(seed: int, factor: float, width: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, width))
    y = np.tanh(x) + 0.3 * rng.normal(size=(40, width))
    rotation = np.linalg.qr(rng.normal(size=(width, width)))[0]
    offset = rng.normal(size=width) * 100

    def score(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return linearity.transitions(of_arrays(a, b))

    base = score(x, y)
    assert 0 <= base[0] <= 1
    np.testing.assert_allclose(score(factor * x @ rotation + offset, y - offset), base, atol=1e-9)
    np.testing.assert_allclose(score(x, x @ rng.normal(size=(width, width)) + offset), 1)


def of_arrays(x: np.ndarray, y: np.ndarray) -> Gram:
    layers = [x, y]
    shift = [v.mean(axis=0) for v in layers]
    moved = [v - s for v, s in zip(layers, shift, strict=True)]
    blocks = {(a, b): moved[a].T @ moved[b] for a in range(2) for b in range(a, 2)}
    columns = Columns([Column("resid", k, v.shape[1]) for k, v in enumerate(layers)], "m")
    total = [v.sum(axis=0) for v in moved]
    provenance = {"model": "m", "precision": "float64", "runs": []}
    return Gram(columns, len(x), shift, total, blocks, provenance=provenance)


def test_windows_hold_all_pairs_once_and_few_layers() -> None:
    every = [(i, j) for i in range(9) for j in range(i + 1, 9)]
    for pairs in (every, [(k, k + 1) for k in range(9)]):
        for blocks in (0, 3, 6, 1000):
            groups = grouped(pairs, blocks)
            assert [pair for group in groups for pair in group] == pairs
            held = [
                len({layer for pair in group for layer in pair}) + len(group) for group in groups
            ]
            assert all(count <= max(blocks, 3) for count in held)
            assert len(groups) == 1 or blocks < len(pairs) + 9
