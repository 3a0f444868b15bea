"""From text to curves on random-weight models, against transformers itself and plain loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from actstore.errors import AnalysisError
from analysis import prediction, r2, report, results

TEXTS = [
    f"The {a} {b} that runs through {c} is {d}, and the words change the light."
    for a in ("river", "city", "model", "young clerk", "whale")
    for b in ("of numbers", "in water")
    for c in ("the capital", "every paper", "air")
    for d in ("Paris", "another row")
]


def extracted(model: Any, tokenizer: Any, folder: Path) -> tuple[Any, Any]:
    language_model = actstore.load_model(model, tokenizer=tokenizer, name="tiny")
    texts = TEXTS if language_model.causal else [text.lower() for text in TEXTS]
    run = actstore.extract(
        language_model, texts, folder / "s.zarr", corpus_name="text", progress=False
    )
    return run, language_model


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_curves_equal_transformers_own_forward_pass(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tokenizer = request.getfixturevalue(
        {"gpt2": "tiny_tokenizer", "llama": "bos_tokenizer", "bert": "bert_tokenizer"}[family]
    )
    model = request.getfixturevalue(f"tiny_{family}")
    run, language_model = extracted(model, tokenizer, tmp_path)
    maps = actstore.fit(run, pairs="to_last", ridge=1e-3)
    got = prediction.curves(
        run, maps, language_model, ks=(1, 5), memory=10_000, per_sample=True, progress=False
    )
    peeked = prediction.peek(run, maps, language_model, [0, 9], k=3)
    assert got.layer.values.tolist() == [0, 1, 2, 3]
    assert got.sizes["sample"] == len(TEXTS)
    for i, ids in enumerate(run.input_ids(got.sequence.values)):
        position = int(got.position[i])
        with torch.inference_mode():
            output = model(input_ids=torch.tensor(ids)[None].long(), output_hidden_states=True)
        final = output.logits[0, position].double()
        chances = final.softmax(-1)
        for layer in (0, 2):
            state = output.hidden_states[layer][0, position].numpy()
            linear = maps[layer, 3]
            for shortcut, mapped in (("id", state), ("mat", state @ linear.matrix)):
                z = language_model.decode(mapped.astype(np.float32)[None])[0]
                token = int(z.argmax())
                at = got.sel(shortcut=shortcut, layer=layer).isel(sample=i)
                assert int(at.sample_token_id) == token
                assert int(at.sample_rank) == int((final > final[token] + 1e-5).sum())
                assert float(at.sample_surprisal) == pytest.approx(
                    -math.log(float(chances[token])), abs=1e-3
                )
        if i in (0, 9):
            at = peeked.sel(sample=i, layer=3, shortcut="id")
            assert at.token_id.values.tolist() == chances.topk(3).indices.tolist()
            assert at.probability.values == pytest.approx(chances.topk(3).values.numpy(), rel=1e-3)
            assert tokenizer.decode(ids[: position + 1].tolist()) == at.context.item()
    assert (got.precision.sel(layer=3) == 1).all()


def test_heat_maps_equal_a_loop_over_pairs_and_coordinates(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    run, _ = extracted(tiny_gpt2, tiny_tokenizer, tmp_path)
    fitting, held_out = run.split(0.4, by="document", seed=1)
    maps = actstore.fit(fitting, ridge=1.0)
    got = r2.heat_maps(maps, held_out)
    assert got.source.values.tolist() == [0, 1, 2]
    assert got.target.values.tolist() == [1, 2, 3]
    states = held_out.resid.values.astype(np.float64)
    for source in range(3):
        for target in range(1, 4):
            found = got.r2.sel(source=source, target=target)
            if target <= source:
                assert np.isnan(found).all()
                continue
            y = states[target]
            for shortcut, x in (
                ("mat", states[source] @ maps[source, target].matrix),
                ("id", states[source]),
            ):
                plain = [
                    1 - ((x[:, c] - y[:, c]) ** 2).sum() / ((y[:, c] - y[:, c].mean()) ** 2).sum()
                    for c in range(y.shape[1])
                ]
                assert float(found.sel(shortcut=shortcut)) == pytest.approx(
                    np.mean(plain), rel=1e-8
                )
    from_gram = r2.heat_maps(maps, actstore.gram(held_out))
    np.testing.assert_allclose(from_gram.r2, got.r2)
    assert got.attrs["title"] == "tiny on text"
    assert got.attrs["samples"] == held_out.n_samples
    assert r2.heat_maps(maps, held_out, average=None).r2.dims[-1] == "feature"
    per_pair = actstore.fit(fitting, pairs="to_last", ridge=1.0)
    assert r2.heat_maps(per_pair, held_out).r2.sizes == {"shortcut": 2, "source": 3, "target": 1}


def test_affine_and_ridge_maps_stand_beside_mat(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    run, _ = extracted(tiny_gpt2, tiny_tokenizer, tmp_path)
    held = actstore.gram(run)
    named = {
        "mat": actstore.fit(held, ridge=0.1),
        "affine": actstore.fit(held, ridge=0.1, intercept=True),
        "to the last": actstore.fit(held, ridge=10.0, pairs="to_last"),
    }
    got = r2.heat_maps(named, held).r2
    assert got.shortcut.values.tolist() == ["mat", "affine", "to the last", "id"]
    alone = r2.heat_maps(named["mat"], held).r2
    np.testing.assert_allclose(got.sel(shortcut=["mat", "id"]), alone)
    np.testing.assert_allclose(got.sel(shortcut="affine"), named["affine"].r2(held))
    last = named["to the last"].r2(held)
    np.testing.assert_allclose(got.sel(shortcut="to the last", target=3), last.sel(target=3))
    assert np.isnan(got.sel(shortcut="to the last", target=2)).all()
    assert r2.heat_maps(named, held, average=None).r2.dims[-1] == "feature"
    with pytest.raises(AnalysisError, match="'id' is the name of the baseline"):
        r2.heat_maps({"id": named["mat"]}, held)
    fewer = actstore.fit(run, layers=[0, 3])
    with pytest.raises(AnalysisError, match="maps of the same layers"):
        r2.heat_maps({"mat": named["mat"], "few": fewer}, held)


def test_results_of_a_store_are_saved_and_reported(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    run, language_model = extracted(tiny_gpt2, tiny_tokenizer, tmp_path)
    maps = actstore.fit(run, ridge=1.0)
    found = {
        "r2": r2.heat_maps(maps, run),
        "curves": prediction.curves(run, maps, language_model, per_sample=True, progress=False),
        "peek": prediction.peek(run, maps, language_model, [0, 1]),
    }
    for name, dataset in found.items():
        path = results.save(dataset, tmp_path / "results" / f"{name}.zarr")
        assert results.load(path).identical(dataset)
        record = results.read_provenance(dataset)
        assert record["maps"]["ridge"] == 1.0
    assert results.read_provenance(found["curves"])["runs"]["evaluation"]["key"] == run.key()
    store = actstore.open(tmp_path / "s.zarr")
    page = report.build(tmp_path / "r.html", tmp_path / "results", store=store).read_text()
    assert page.count("<svg") == 2 + 4
    assert "Runs in the store" in page


def test_another_model_of_the_same_width_is_refused(
    tiny_gpt2: Any, tiny_llama: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    run, _ = extracted(tiny_gpt2, tiny_tokenizer, tmp_path)
    other = actstore.load_model(tiny_llama, tokenizer=tiny_tokenizer, name="other")
    with pytest.raises(AnalysisError, match="tiny/text was not extracted from other"):
        prediction.curves(run, None, other, shortcuts=("id",))


@pytest.mark.real
def test_smollm2_reads_its_own_last_layer(
    real_model_folder: Path, wikipedia_path: Path, tmp_path: Path
) -> None:
    model = actstore.load_model(real_model_folder)
    corpus = actstore.read_corpus(wikipedia_path, limit=40)
    run = actstore.extract(
        model, corpus, tmp_path / "s.zarr", layers=[0, 15, 29, 30], bos="none", progress=False
    )
    got = prediction.curves(run, None, model, shortcuts=("id",), cluster=None, progress=False)
    precision = got.precision.sel(shortcut="id", k=10).values
    assert precision[-1] == 1
    assert precision[0] < 0.3 < precision[2]
    surprisal = got.surprisal.sel(shortcut="id").values
    assert surprisal[-1] < 2.5 < surprisal[0]
    peeked = prediction.peek(run, None, model, [0], shortcuts=("id",))
    (ids,) = run.input_ids(run.samples.sequence.values[:1])
    position = int(run.samples.position[0])
    with torch.inference_mode():
        logits = model.model(torch.tensor(ids)[None].long()).logits[0, position].float()
    assert int(peeked.token_id.sel(layer=30)[0, 0, 0]) == int(logits.argmax())
