"""Prediction curves against a slow loop over samples, and what must hold always."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from analysis_fakes import FakeRun, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import AnalysisError, NonFiniteError, SiteError
from analysis import decoding, prediction, results, stats


def plain_sample(
    run: Any, maps: Any, model: Any, shortcut: str, layer: int, i: int
) -> tuple[int, int, float]:
    """Token, rank and surprisal of one sample, by the definitions in Python floats."""

    def logits(state: list[float]) -> list[float]:
        scale = math.sqrt(sum(x * x for x in state) / len(state) + 1e-6)
        return [
            sum(x / scale * float(w) for x, w in zip(state, column, strict=True))
            for column in model.head.T
        ]

    last = model.n_blocks
    state = [float(x) for x in run.states[run.layers.index(layer), i]]
    if shortcut == "mat" and layer != last:
        linear = maps[layer, last]
        bias = [0.0] * len(state) if linear.bias is None else linear.bias
        state = [
            sum(x * float(a) for x, a in zip(state, column, strict=True)) + float(b)
            for column, b in zip(linear.matrix.T, bias, strict=True)
        ]
    z = logits(state)
    final = logits([float(x) for x in run.states[run.layers.index(last), i]])
    token = max(range(len(z)), key=lambda t: (z[t], -t))
    rank = sum(other > final[token] for other in final)
    partition = sum(math.exp(x) for x in final)
    return token, rank, -math.log(math.exp(final[token]) / partition)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.sampled_from([1, 400, 5000, 10**6]))
def test_curves_equal_the_plain_loop(seed: int, shard: int, memory: int) -> None:
    run, maps, model = tiny(n=23, seed=seed)
    run.shard = shard
    got = prediction.curves(
        run, maps, model, ks=(1, 3, 10), memory=memory, per_sample=True, progress=False
    )
    documents = run.samples.document.values
    for shortcut in ("mat", "id"):
        for layer in range(4):
            plain = [plain_sample(run, maps, model, shortcut, layer, i) for i in range(23)]
            tokens, ranks, surprisals = (list(column) for column in zip(*plain, strict=True))
            at = got.sel(shortcut=shortcut, layer=layer)
            assert at.sample_token_id.values.tolist() == tokens
            assert at.sample_rank.values.tolist() == ranks
            np.testing.assert_allclose(at.sample_surprisal, surprisals, atol=1e-4)
            for k in (1, 3, 10):
                share = sum(rank < k for rank in ranks) / 23
                assert float(at.precision.sel(k=k)) == pytest.approx(share)
                interval = stats.proportion([rank < k for rank in ranks], documents)
                assert float(at.precision_high.sel(k=k)) == pytest.approx(float(interval.high))
            interval = stats.mean(surprisals, documents)
            for name, value in zip(("", "_low", "_high"), interval, strict=True):
                assert float(at["surprisal" + name]) == pytest.approx(float(value), abs=1e-4)


def test_the_last_layer_is_the_model_itself() -> None:
    run, maps, model = tiny()
    got = prediction.curves(run, maps, model, progress=False)
    assert (got.precision.sel(layer=3) == 1).all()
    assert (got.precision_low.sel(layer=3) == 1).all()  # by construction, not by sampling
    assert (got.precision_low.sel(layer=2) < 1).all()
    assert float(got.surprisal.sel(layer=3, shortcut="mat")) == pytest.approx(
        float(got.surprisal.sel(layer=3, shortcut="id"))
    )
    assert got.depth.values.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert got.attrs["clusters"] == 13
    assert got.attrs["title"] == "tiny on text"
    assert results.read_provenance(got)["runs"]["evaluation"]["samples"] == 37


def test_gain_is_the_paired_difference() -> None:
    run, maps, model = tiny(n=60)
    got = prediction.curves(run, maps, model, ks=(1, 5), per_sample=True, progress=False)
    hit = got.sample_rank < 5
    difference = hit.sel(shortcut="mat").astype(int) - hit.sel(shortcut="id").astype(int)
    expected = stats.mean(difference.sel(layer=1).values, run.samples.document.values)
    at = got.sel(layer=1, k=5)
    assert float(at.precision_gain) == pytest.approx(float(expected.value))
    assert float(at.precision_gain_low) == pytest.approx(float(expected.low))
    spread = got.surprisal.sel(shortcut="id") - got.surprisal.sel(shortcut="mat")
    np.testing.assert_allclose(got.surprisal_gain, spread, atol=1e-5)


def test_ties_rank_by_strictly_greater_logits_and_pick_the_lowest_id() -> None:
    run, maps, model = tiny(n=5, vocab=6)
    model.head[:] = 0
    got = prediction.curves(run, maps, model, ks=(1, 5), per_sample=True, progress=False)
    assert (got.sample_token_id == 0).all()
    assert (got.sample_rank == 0).all()
    assert (got.precision == 1).all()
    np.testing.assert_allclose(got.surprisal, math.log(6), rtol=1e-6)
    # Tokens 0 and 1 tie for the second place: both are in the top 2, neither is in the top 1.
    model.head[:, 2] = 1
    run.states[:] = np.abs(run.states)
    run.states[0] *= -1
    got = prediction.curves(run, None, model, ks=(1, 2), shortcuts=("id",), per_sample=True)
    assert (got.sample_rank.sel(layer=0) == 1).all()
    assert got.precision.sel(layer=0, shortcut="id").values.tolist() == [0, 1]
    assert "precision_gain" not in got


def test_memory_is_bounded_by_the_budget_not_the_samples() -> None:
    vocab, budget = 2_000, 2**20
    peaks = []
    for n in (500, 4_000):
        run, maps, model = tiny(n=n, vocab=vocab)
        run.shard = 256
        tracemalloc.start()
        prediction.curves(run, maps, model, memory=budget, progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert model.largest_block * vocab * 4 <= budget
    per_sample = 8 * 4 * 3 * 12  # shortcuts × layers × ks, and what the intervals keep
    assert peaks[1] - peaks[0] < 3_500 * per_sample
    assert peaks[1] < budget + 4_000 * per_sample < 4_000 * vocab * 4 / 4


def test_half_precision_states_are_read_as_they_are() -> None:
    run, maps, model = tiny()
    half = FakeRun(run.states.astype(np.float16), run.layers)
    same = FakeRun(run.states.astype(np.float16).astype(np.float32), run.layers)
    one, two = (prediction.curves(r, maps, model, progress=False) for r in (half, same))
    np.testing.assert_allclose(one.surprisal, two.surprisal, rtol=1e-6)


def test_a_subset_of_layers_and_no_clusters() -> None:
    run, maps, model = tiny()
    few = FakeRun(run.states[[1, 3]], [1, 3])
    whole = prediction.curves(run, maps, model, cluster=None, progress=False)
    part = prediction.curves(few, maps, model, cluster=None, progress=False)
    assert part.layer.values.tolist() == [1, 3]
    np.testing.assert_allclose(part.surprisal, whole.surprisal.sel(layer=[1, 3]), rtol=1e-5)
    assert part.attrs["cluster"] == "sample"


def test_what_cannot_be_computed_is_said_in_one_line() -> None:
    run, maps, model = tiny()
    without_last = FakeRun(run.states[:3], [0, 1, 2])
    with pytest.raises(SiteError, match="need layer 3 of site 'resid'"):
        prediction.curves(without_last, maps, model)
    del maps[1, 3]
    with pytest.raises(AnalysisError, match="no map 1 → 3 among the maps; fit with"):
        prediction.curves(run, maps, model)
    with pytest.raises(AnalysisError, match="no map 0 → 3"):
        prediction.curves(run, None, model)
    with pytest.raises(AnalysisError, match="shortcut 'lens'"):
        prediction.curves(run, maps, model, shortcuts=("lens",))
    with pytest.raises(AnalysisError, match=r"ks=\(0,\); each k lies in 1…40"):
        prediction.curves(run, maps, model, ks=(0,))
    with pytest.raises(AnalysisError, match=r"no sample coordinate 'article'.*document"):
        prediction.curves(run, maps, model, cluster="article", shortcuts=("id",))
    with pytest.raises(AnalysisError, match="no samples in view"):
        prediction.curves(run.isel(sample=slice(0)), maps, model)
    model.describe = lambda: {"dtype": "float32", "fingerprint": "beef"}
    with pytest.raises(AnalysisError, match=r"not extracted from tiny .*beef.*f00d"):
        prediction.curves(run, maps, model)
    model.describe = lambda: {"dtype": "bfloat16", "fingerprint": "beef"}
    assert prediction.curves(run, None, model, shortcuts=("id",), progress=False)
    model.has_head = False
    with pytest.raises(AnalysisError, match="tiny has no language-model head"):
        prediction.curves(run, maps, model)


@pytest.mark.parametrize("layer", [1, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_refused(layer: int, value: float) -> None:
    run, maps, model = tiny()
    run.states[layer, 30, 2] = value
    with pytest.raises(NonFiniteError, match=f"layer {layer} holds NaN or infinity among samples"):
        prediction.curves(run, maps, model, shortcuts=("id",), progress=False)
    run, maps, model = tiny()
    model.head[0, 5] = value
    with pytest.raises(NonFiniteError, match="gives logits that are NaN or infinite"):
        prediction.curves(run, maps, model, shortcuts=("id",), progress=False)


def test_the_table_has_a_line_for_every_layer() -> None:
    run, maps, model = tiny()
    text = prediction.curves_table(prediction.curves(run, maps, model, progress=False))
    lines = text.splitlines()
    assert lines[0] == "tiny on text: 37 samples, 13 document clusters"
    assert len(lines) == 2 + 4
    assert lines[1].split("  ")[-1].strip() == "surprisal"
    assert "mat: P@1 %  P@5 %  P@10 %" in lines[1]
    assert lines[-1].split()[:2] == ["3", "100.0"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_many_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run, maps, model = tiny(n=200)
    alone = prediction.curves(run, maps, model, per_sample=True, progress=False)
    monkeypatch.setattr(decoding.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(decoding, "_WORTHWHILE_ROWS", 1)
    assert decoding._partition(40, 40 * 4 * 80) == (10, 8)
    together = prediction.curves(
        run, maps, model, per_sample=True, memory=40 * 4 * 80, progress=False
    )
    np.testing.assert_array_equal(alone.sample_token_id, together.sample_token_id)
    np.testing.assert_array_equal(alone.sample_rank, together.sample_rank)
    np.testing.assert_allclose(alone.sample_surprisal, together.sample_surprisal, atol=1e-5)
