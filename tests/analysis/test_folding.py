"""Folded models against transformers' own with a matrix product hooked in, T against lstsq."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from rerun_models import TEXTS

import actstore
from actstore.errors import AnalysisError, SiteError
from actstore.grams import gram
from analysis import folding, perplexity, plots, report, results

LAST = {"gpt2": "mlp.c_proj", "opt": "fc2", "llama": "mlp.down_proj"}
FAMILIES = list(LAST)


def rows(run: Any, block: int, start: int, stop: int) -> tuple[np.ndarray, ...]:
    stream = run.resid.sel(layer=[start, stop]).values.astype(float)
    return run.mlp.sel(block=block).values.astype(float), *stream


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_t_minimises_the_papers_error(case: Any, ridge: float, intercept: bool) -> None:
    run = case("gpt2").run
    m, before, after = rows(run, 0, 1, 3)
    y = before - m
    found = folding.transformation(run, [1, 2], ridge=ridge, intercept=intercept)
    # ‖m T + c + y − h_b‖² + α‖T − I‖² as one least-squares problem of the rows.
    width = m.shape[1]
    design, aim = m, after - y - m
    if intercept:
        design, aim = m - m.mean(0), aim - aim.mean(0)
    design = np.vstack([design, np.sqrt(ridge) * np.eye(width)])
    change = np.linalg.lstsq(design, np.vstack([aim, np.zeros((width, width))]), rcond=None)[0]
    np.testing.assert_allclose(found.matrix, np.eye(width) + change, rtol=1e-5, atol=1e-6)
    if intercept:
        expected = (after - y).mean(0) - m.mean(0) @ found.matrix
        np.testing.assert_allclose(found.bias, expected, atol=1e-6)
    else:
        assert found.bias is None
    again = folding.transformation(
        gram(run.sel(site=["mlp", "resid"]).sel(block=0).sel(layer=[1, 3]), sites=["mlp", "resid"]),
        [1, 2],
        ridge=ridge,
        intercept=intercept,
    )
    np.testing.assert_allclose(again.matrix, found.matrix)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folded_model_is_the_whole_one_with_t_hooked_in(
    case: Any, family: str, tmp_path: Any
) -> None:
    one = case(family)
    intercept = family != "llama"
    linear = folding.transformation(one.run, [1, 2], ridge=1.0, intercept=intercept)
    before = {name: weight.clone() for name, weight in one.hf.state_dict().items()}
    made = folding.fold(one.model, one.run, [1, 2], ridge=1.0, intercept=intercept)
    for name, weight in one.hf.state_dict().items():
        assert torch.equal(weight, before[name])
    ids = torch.tensor([[7, 9, 30, 12, 44, 3]])
    matrix = torch.tensor(linear.matrix).float()
    shift = torch.zeros(len(matrix)) if linear.bias is None else torch.tensor(linear.bias).float()

    def same(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
        entered = args[0] if args else kwargs["hidden_states"]
        return entered if isinstance(output, torch.Tensor) else (entered, *output[1:])

    last = one.model.blocks[0].get_submodule(LAST[family])
    handles = [last.register_forward_hook(lambda _, args, out: out @ matrix + shift)]
    handles += [
        one.model.blocks[block].register_forward_hook(same, with_kwargs=True) for block in (1, 2)
    ]
    with torch.inference_mode():
        expected = one.hf(input_ids=ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    with torch.inference_mode():
        found = made(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert type(made) is type(one.hf)
    assert made.config.num_hidden_layers == 2

    made.save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(input_ids=ids).logits, found, rtol=1e-4, atol=1e-5)
    loaded.generation_config.eos_token_id = None
    longer = loaded.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False, pad_token_id=0
    )
    assert longer.shape == (1, 9)


def test_folding_comes_nearer_to_the_states_than_removal(case: Any) -> None:
    one = case("llama")
    m, before, after = rows(one.run, 0, 1, 3)
    made = actstore.load_model(folding.fold(one.model, one.run, [1, 2]), tokenizer=None, name="f")
    ids = [one.run.input_ids([number])[0] for number in one.run.coordinate("sequence")]
    places = [np.array([place]) for place in one.run.coordinate("position")]
    found = made.capture(ids, places, {"resid": [1]})["resid"][0]
    t = folding.transformation(one.run, [1, 2]).matrix
    np.testing.assert_allclose(found, m @ t + before - m, rtol=1e-3, atol=1e-4)
    assert ((found - after) ** 2).sum() < ((before - after) ** 2).sum()


def test_perplexities_are_those_of_the_models_made_by_hand(case: Any, tmp_path: Any) -> None:
    one = case("gpt2")
    texts = TEXTS[:6]
    found = folding.compare(
        one.model, one.run, texts, [[1], [1, 2]], ridge=1.0, context=32, bos="none"
    )
    made = folding.fold(one.model, one.run, [1, 2], ridge=1.0)
    judged = actstore.load_model(made, tokenizer=one.model.tokenizer, name="f")
    expected = perplexity.perplexity(judged, texts, context=32, bos="none")
    at = found.sel(span="1…2", variant="folded")
    assert float(at.perplexity) == pytest.approx(float(expected.perplexity))
    whole = perplexity.perplexity(one.model, texts, context=32, bos="none")
    assert float(found.whole) == pytest.approx(float(whole.perplexity))
    assert float(at.ratio) == pytest.approx(float(expected.perplexity / whole.perplexity))
    assert found.blocks.values.tolist() == [1, 2]

    results.save(found, tmp_path / "f.zarr")
    assert results.load(tmp_path / "f.zarr").identical(found)
    assert len(plots.folding(found).axes) == 1
    assert "2505.02819" in report.build(tmp_path / "r.html", [found]).read_text("utf-8")
    assert "folded into block 0" in report.findings([found])[0]


def test_refusals_name_the_reason(case: Any) -> None:
    one = case("llama")
    with pytest.raises(AnalysisError, match=r"\[1, 3\]"):
        folding.fold(one.model, one.run, [1, 3])
    with pytest.raises(AnalysisError, match="at least 1"):
        folding.fold(one.model, one.run, [0, 1])
    with pytest.raises(AnalysisError, match="ridge=-1"):
        folding.transformation(one.run, [1], ridge=-1)
    with pytest.raises(AnalysisError, match="no bias"):
        folding.fold(one.model, one.run, [1], intercept=True)
    with pytest.raises(SiteError, match="mlp"):
        folding.transformation(one.run.sel(site="resid"), [1])


def test_a_norm_before_the_stream_is_refused(tiny_tokenizer: Any) -> None:
    torch.manual_seed(0)
    config = hf.Olmo2Config(
        vocab_size=320,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        pad_token_id=0,
    )
    model = actstore.load_model(
        hf.Olmo2ForCausalLM(config).eval(), tokenizer=tiny_tokenizer, name="olmo2"
    )
    with pytest.raises(AnalysisError, match="no linear module"):
        folding.last_matrix(model, 0)
