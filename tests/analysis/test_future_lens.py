"""The future lens against a plain loop over transformers' own passes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from rerun_models import TEXTS
from sklearn.linear_model import Ridge
from store_like import memory_run

import actstore
from actstore.errors import AnalysisError, GramError, SiteError
from analysis import future_lens, plots, report, results, transport
from analysis.stats import proportion

ALPHA = 1.0


@pytest.fixture(scope="module")
def parts(case, tmp_path_factory):
    known = case("gpt2")
    folder = tmp_path_factory.mktemp("future")
    run = actstore.extract(known.model, TEXTS, folder / "s.zarr", positions="all", corpus_name="t")
    return known, *run.split(0.3, seed=2)


@pytest.fixture(scope="module")
def found(parts):
    known, train, held_out = parts
    return future_lens.curves(
        train.sel(layer=[1, 3, 4]),
        held_out.sel(layer=[1, 3, 4]),
        known.model,
        offsets=(1, 2),
        ks=(1, 3),
        ridge=ALPHA,
    )


def sequences(known, run):
    """Ids and the stream of each document, by transformers' own hidden states of its blocks."""
    for number in np.unique(run.coordinate("sequence")):
        (ids,) = run.input_ids([number])
        with torch.no_grad():
            out = known.hf(torch.tensor(ids)[None].long(), output_hidden_states=True)
        yield ids, [states[0].double().numpy() for states in out.hidden_states], out.logits[0]


def test_curves_equal_a_loop_over_documents(parts, found):
    known, train, held_out = parts
    blocks = len(known.hf.transformer.h)
    for offset in (1, 2):
        hits, surprisal, documents = {}, {}, []
        for layer in (1, 3):
            x, y = [], []
            for _, states, _ in sequences(known, train):
                # transformers' last hidden state is after the norm: the stream's is in the store.
                x += list(states[layer][:-offset])
            for number in np.unique(train.coordinate("document")):
                y += list(train.sel(document=number).resid.sel(layer=blocks).values[offset:])
            model = Ridge(alpha=ALPHA).fit(np.array(x), np.array(y, float))
            hits[layer], surprisal[layer], documents = [], [], []
            for number, (_, states, logits) in enumerate(sequences(known, held_out)):
                guess = model.predict(states[layer][:-offset])
                with torch.no_grad():
                    normed = known.hf.transformer.ln_f(torch.tensor(guess).float())
                    best = known.hf.lm_head(normed).argmax(1)
                final = logits[offset:].double()
                log_p = final.log_softmax(1)
                for row, token in enumerate(best.tolist()):
                    hits[layer].append([(final[row] > final[row, token]).sum() < k for k in (1, 3)])
                    surprisal[layer].append(-float(log_p[row, token]))
                    documents.append(number)
            at = found.sel(offset=offset, layer=layer)
            for column, k in enumerate((1, 3)):
                expected = proportion(np.array(hits[layer])[:, column], documents)
                assert float(at.precision.sel(k=k)) == pytest.approx(expected.value)
                assert float(at.precision_low.sel(k=k)) == pytest.approx(expected.low)
            assert float(at.surprisal) == pytest.approx(np.mean(surprisal[layer]), rel=1e-3)
        assert int(found.samples.sel(offset=offset)) == len(documents)


def test_the_bigram_baseline_counts_the_text(parts, found):
    known, train, held_out = parts
    for offset in (1, 2):
        counts, overall, hits = {}, Counter(), []
        for ids, _, _ in sequences(known, train):
            overall.update(ids.tolist())
            for token, after in zip(ids, ids[offset + 1 :], strict=False):
                counts.setdefault(int(token), Counter())[int(after)] += 1
        for ids, _, logits in sequences(known, held_out):
            for place in range(len(ids) - offset):
                own = counts.get(int(ids[place]), overall)
                guess = min(own, key=lambda token: (-own[token], token))
                final = logits[place + offset]
                hits.append(int((final > final[guess]).sum()) < 3)
        assert float(found.bigram_precision.sel(offset=offset, k=3)) == pytest.approx(np.mean(hits))


def test_bigrams_by_hand():
    run = memory_run(
        [np.zeros((7, 2))],
        documents=[0, 0, 0, 0, 1, 1, 1],
        positions=[0, 1, 2, 3, 0, 1, 2],
        token_ids=[5, 6, 5, 7, 5, 6, 9],
    )
    # 5 is followed by 6, 7 and 6; 6 by 5 and 9; 9 by nothing, and 5 is the most frequent.
    assert future_lens.bigrams(run, np.array([5, 6, 9]), 1).tolist() == [6, 5, 5]
    assert future_lens.bigrams(run, np.array([5, 6]), 2).tolist() == [5, 7]


def test_one_gram_never_holds_all_layers(parts, monkeypatch):
    known, train, held_out = parts
    sizes, usual = [], transport.gram

    def watched(*args, **options):
        made = usual(*args, **options)
        sizes.append(len(made.columns))
        return made

    monkeypatch.setattr(transport, "gram", watched)
    many = future_lens.curves(train, held_out, known.model, offsets=(1,), ridge=[ALPHA, 10.0])
    assert many.layer.size == 5
    assert max(sizes) <= 3


def test_gains_are_paired_differences(found):
    gain = found.precision - found.bigram_precision
    np.testing.assert_allclose(
        found.precision_gain, gain.transpose("offset", "layer", "k"), atol=1e-12
    )
    assert (found.mean_surprisal >= 0).all()


def test_refusals_name_the_reason(parts):
    known, train, held_out = parts
    with pytest.raises(AnalysisError, match="1 or more"):
        future_lens.curves(train, held_out, known.model, offsets=(0,))
    with pytest.raises(SiteError, match="layer 4"):
        future_lens.curves(train.sel(layer=[1, 2]), held_out, known.model)
    with pytest.raises(GramError, match="positions='all'"):
        future_lens.curves(train, held_out, known.model, offsets=(60,))


def test_saved_drawn_and_reported(found, tmp_path):
    results.save(found, tmp_path / "f.zarr")
    assert results.load(tmp_path / "f.zarr").identical(found)
    assert len(plots.future_lens(found, 3).axes) == 1
    assert "2311.04897" in report.build(tmp_path / "r.html", [found]).read_text("utf-8")
    assert "2 ahead" in report.findings([found])[0]
