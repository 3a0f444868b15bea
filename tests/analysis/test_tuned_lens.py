"""The tuned lens starts at least squares, says what its history says, and never gets worse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rerun_models import TEXTS, Case

import actstore
from actstore.errors import AnalysisError, SiteError
from analysis import plots, report, results, tuned_lens
from analysis.stats import mean

OPTIONS = {"epochs": 4, "batch_size": 64, "learning_rate": 0.003, "validation": 0.25}


@pytest.fixture(scope="module")
def one(case, tmp_path_factory):
    """A random GPT-2 with every token stored: enough rows that training pays."""
    known = case("gpt2")
    run = actstore.extract(
        known.model, TEXTS, tmp_path_factory.mktemp("lens") / "s.zarr", positions="all"
    )
    fitting, held_out = run.split(0.3, by="document", seed=1)
    return Case(known.hf, known.model, fitting, held_out, actstore.fit(fitting))


@pytest.fixture(scope="module")
def trained(one):
    return one, tuned_lens.train(one.run, one.model, seed=4, **OPTIONS)


def log_probabilities(one, states):
    """By transformers' own modules."""
    with torch.no_grad():
        normed = one.hf.transformer.ln_f(torch.tensor(states, dtype=torch.float32))
        return one.hf.lm_head(normed).double().log_softmax(-1).numpy()


def plain_kl(one, run, lens, layer):
    """KL of every sample, one after the other."""
    rows = run.resid.sel(layer=[layer, 4]).values.astype(float)
    found = []
    for state, last in zip(*rows, strict=True):
        log_p = log_probabilities(one, last)
        if lens is not None:
            state = state @ lens.matrix + (0 if lens.bias is None else lens.bias)
        log_q = log_probabilities(one, state)
        found.append(float(np.sum(np.exp(log_p) * (log_p - log_q))))
    return np.array(found)


def test_history_and_maps_agree_with_plain_loops(trained):
    one, lenses = trained
    rest, judged = one.run.split(0.25, by="document", seed=4)
    start = actstore.fit(rest, pairs="to_last", intercept=True)
    history = lenses.provenance["tuned"]["validation_kl"]
    improved = 0
    for layer in range(4):
        steps = history[str(layer)]
        assert len(steps) == 5
        assert steps[0] == pytest.approx(
            plain_kl(one, judged, start[layer, 4], layer).mean(), rel=1e-3
        )
        kept = plain_kl(one, judged, lenses[layer, 4], layer).mean()
        assert kept == pytest.approx(min(steps), rel=1e-3)
        improved += min(steps) < steps[0]
    assert improved >= 3


def test_no_training_is_least_squares(one):
    lenses = tuned_lens.train(one.run, one.model, layers=[1, 2], epochs=0, validation=0.25)
    rest, _ = one.run.split(0.25, by="document", seed=0)
    start = actstore.fit(rest.sel(layer=[1, 2, 4]), pairs="to_last", intercept=True)
    assert list(lenses) == [(1, 4), (2, 4)]
    np.testing.assert_array_equal(lenses[2, 4].matrix, start[2, 4].matrix)
    np.testing.assert_array_equal(lenses[2, 4].bias, start[2, 4].bias)


def test_the_same_call_gives_the_same_numbers_and_another_seed_others(trained, tmp_path):
    one, lenses = trained
    again = tuned_lens.train(one.run, one.model, seed=4, **OPTIONS)
    other = tuned_lens.train(one.run, one.model, seed=5, **OPTIONS)
    lenses.save(tmp_path / "lenses.safetensors")
    loaded = actstore.load_maps(tmp_path / "lenses.safetensors")
    assert loaded.provenance == lenses.provenance
    for pair in lenses:
        np.testing.assert_array_equal(again[pair].matrix, lenses[pair].matrix)
        np.testing.assert_array_equal(loaded[pair].bias, lenses[pair].bias)
    assert any(not np.array_equal(other[pair].matrix, lenses[pair].matrix) for pair in lenses)


@pytest.fixture(scope="module")
def compared(trained):
    one, lenses = trained
    return tuned_lens.curves(one.held_out, lenses, one.maps, one.model, ks=(1, 3))


def test_curves_equal_plain_loops(trained, compared):
    one, lenses = trained
    run = one.held_out
    documents = run.coordinate("document")
    final = log_probabilities(one, run.resid.sel(layer=4).values)
    for layer in range(4):
        for name, used in (("tuned", lenses[layer, 4]), ("mat", one.maps[layer, 4]), ("id", None)):
            kl = plain_kl(one, run, used, layer)
            at = compared.sel(layer=layer, shortcut=name)
            expected = mean(kl, documents)
            assert float(at.kl) == pytest.approx(expected.value, rel=1e-3)
            assert float(at.kl_low) == pytest.approx(expected.low, rel=1e-2, abs=1e-3)
            states = run.resid.sel(layer=layer).values.astype(float)
            if used is not None:
                states = states @ used.matrix + (0 if used.bias is None else used.bias)
            best = log_probabilities(one, states).argmax(axis=1)
            said = final[np.arange(len(best)), best]
            assert float(at.surprisal) == pytest.approx(-said.mean(), rel=1e-4)
            rank = (final > said[:, None]).sum(axis=1)
            for k in (1, 3):
                assert float(at.precision.sel(k=k)) == pytest.approx((rank < k).mean())
    gain = compared.kl.sel(shortcut="mat") - compared.kl.sel(shortcut="tuned")
    np.testing.assert_allclose(compared.kl_gain, gain, rtol=1e-3, atol=1e-5)


def test_memory_changes_nothing(trained, compared):
    one, lenses = trained
    small = tuned_lens.curves(one.held_out, lenses, one.maps, one.model, ks=(1, 3), memory=100_000)
    for name in ("precision", "surprisal", "kl"):
        np.testing.assert_allclose(small[name], compared[name], rtol=1e-4, atol=1e-6)


def test_saved_drawn_and_reported(compared, tmp_path):
    results.save(compared, tmp_path / "t.zarr")
    assert results.load(tmp_path / "t.zarr").identical(compared)
    assert len(plots.tuned_lens(compared, 3).axes) == 3
    with pytest.raises(AnalysisError, match="k=2"):
        plots.tuned_lens(compared, 2)
    assert "2303.08112" in report.build(tmp_path / "r.html", [compared]).read_text("utf-8")
    assert "nats of KL less" in report.findings([compared])[0]


def test_refusals_name_the_reason(trained):
    one, lenses = trained
    with pytest.raises(AnalysisError, match="below 4"):
        tuned_lens.train(one.run, one.model, layers=[4])
    with pytest.raises(SiteError, match="layer 7"):
        tuned_lens.train(one.run, one.model, layers=[7])
    with pytest.raises(AnalysisError, match="epochs=-1"):
        tuned_lens.train(one.run, one.model, epochs=-1)
    some = actstore.fit(one.run, pairs=[(0, 4)], ridge=1e-2)
    with pytest.raises(AnalysisError, match="no map 1 → 4"):
        tuned_lens.curves(one.held_out, lenses, some, one.model)
