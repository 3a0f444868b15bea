"""Masked models throughout, against transformers' own masked forward pass."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from analysis import alternation, annotation, early_exit, prediction, results, transfer
from examples import assets, germlines


def own_logits(case: Any, run: Any, sample: int) -> torch.Tensor:
    """What BertForMaskedLM says at the mask of the sample's sequence."""
    ids, position = case.ids(run, sample), case.position(run, sample)
    assert int(ids[0, position]) == case.model.tokenizer.mask_token_id
    with torch.inference_mode():
        return case.hf(ids).logits[0, position].double()


def mapped_logits(case: Any, run: Any, sample: int, layer: int, shortcut: str) -> torch.Tensor:
    ids, position = case.ids(run, sample), case.position(run, sample)
    with torch.inference_mode():
        states = case.hf(ids, output_hidden_states=True).hidden_states[layer]
        state = states[0, position]
        if shortcut == "mat" and layer < 4:
            state = state @ torch.tensor(case.maps[layer, 4].matrix, dtype=torch.float32)
        return case.hf.cls(state[None])[0].double()


def test_every_sample_of_a_masked_run(case: Any, tmp_path: Path) -> None:
    at = case("bert")
    run = at.held_out
    curves = prediction.curves(run, at.maps, at.model, ks=(1, 3), per_sample=True, progress=False)
    swept = early_exit.sweep(
        run, at.maps, at.model, lambdas=[0.3], resamples=20, progress=False
    ).isel({"lambda": 0})
    length = float((run.samples.position.values + 1).mean())
    for shortcut in ("mat", "id"):
        left, right = [], []
        for i in range(run.n_samples):
            final = own_logits(at, run, i)
            exits = None
            for layer in range(5):
                z = mapped_logits(at, run, i, layer, shortcut)
                token = int(z.argmax())
                found = curves.sel(shortcut=shortcut, layer=layer).isel(sample=i)
                assert int(found.sample_token_id) == token
                assert int(found.sample_rank) == int((final > final[token] + 1e-5).sum())
                assert float(found.sample_surprisal) == pytest.approx(
                    -float(final.log_softmax(-1)[token]), abs=1e-3
                )
                first, second = z.softmax(-1).topk(2).values.tolist()
                limit = 0.27 + 0.1 * math.exp(-4 * at.position(run, i) / length)
                if exits is None and layer and (layer == 4 or first - second > limit):
                    exits = layer
                    right.append(token == int(final.argmax()))
            left.append(exits)
        assert float(swept.blocks.sel(shortcut=shortcut)) == pytest.approx(np.mean(left))
        assert float(swept.precision.sel(shortcut=shortcut)) == pytest.approx(np.mean(right))
    assert 1 < float(swept.blocks.mean()) < 4


def test_peek_shows_the_mask_and_the_sheet_what_follows_it(case: Any, tmp_path: Path) -> None:
    at = case("bert")
    got = prediction.peek(at.held_out, at.maps, at.model, [0, 2], k=3)
    for i, sample in enumerate((0, 2)):
        expected = own_logits(at, at.held_out, sample).softmax(-1).topk(3)
        last = got.isel(sample=i).sel(layer=4, shortcut="id")
        assert last.token_id.values.tolist() == expected.indices.tolist()
        np.testing.assert_allclose(last.probability, expected.values, rtol=1e-3)
        assert got.context[i].item().endswith("[MASK]")
    sheet = annotation.export(got, tmp_path)
    rows = sheet.table.read_text().splitlines()[1:]
    assert all("[MASK] (___) " in row for row in rows)


def test_transfer_of_masked_corpora(case: Any) -> None:
    at = case("bert")
    maps = {"one": at.maps, "two": actstore.fit(at.held_out, ridge=1.0)}
    runs = {"one": at.run, "two": at.held_out}
    got = transfer.predictions(maps, runs, at.model, ks=(1,), progress=False)
    alone = prediction.curves(at.held_out, at.maps, at.model, ks=(1,), progress=False)
    np.testing.assert_allclose(
        got.precision.sel(fitted_on="one", evaluated_on="two"),
        alone.precision.sel(shortcut="mat"),
    )


@pytest.mark.real
def test_the_antibody_model_fills_in_germline_chains(tmp_path: Path) -> None:
    if not (assets.available("antibody_bert") and germlines.available()):
        pytest.skip("fetch them with: python -m examples.assets antibody_bert; examples.germlines")
    model = actstore.load_model(assets.antibody_bert(), name="antibody-bert")
    corpus = actstore.read_corpus(germlines.chains("kappa"), limit=80)
    run = actstore.extract(model, corpus, tmp_path / "s.zarr", positions="mask", progress=False)
    rest, held_out = run.split(0.4, by="gene", seed=0)
    maps = actstore.fit(rest, ridge=10.0, progress=False)
    got = prediction.curves(held_out, maps, model, cluster="gene", per_sample=True, progress=False)
    own = got.sample_token_id.sel(layer=8, shortcut="id").values
    assert (own == held_out.samples.target_id.values).mean() > 0.8  # germline: nearly all known
    at_1 = got.precision.sel(k=1)
    assert float(at_1.sel(layer=7, shortcut="mat")) > 0.7
    assert float(at_1.sel(layer=4, shortcut="mat")) > float(at_1.sel(layer=4, shortcut="id"))
    schedules = alternation.exits(8, [7]) + alternation.round_robins(8, [2])
    jumped = alternation.curves(held_out, maps, model, schedules, samples=20, progress=False)
    assert float(jumped.precision[0, 0]) > 0.5
    results.save(jumped, tmp_path / "r.zarr")
