"""Generation with early exits against full forward passes of transformers, token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from rerun_models import BLOCKS, layers_of, matrix, plain_block, plain_logits

from actstore.errors import AnalysisError
from analysis import early_exit, results

PROMPT = [30, 77, 45, 12]
LAMBDA = {
    "gpt2": 0.03,
    "llama": 0.03,
    "opt": 0.1,
}


def plain_walk(
    case: Any, layers: list[torch.Tensor], shortcut: str, exits: Any, limit: float
) -> Any:
    """(token, layer) by the rule, given the last position's state on each layer."""
    for layer in range(1, BLOCKS + 1):
        if layer not in exits and layer < BLOCKS:
            continue
        state = layers[layer]
        if shortcut == "mat" and layer < BLOCKS:
            state = state @ matrix(case.maps[layer, BLOCKS])
        p = plain_logits(case, state).softmax(-1)
        first, second = p.topk(2).values.tolist()
        if layer == BLOCKS or first - second > limit:
            return int(p.argmax()), layer
    raise AssertionError


def limit_at(ids: list[int], lambda_: float, new: int) -> float:
    length = len(PROMPT) + (new - 1) / 2
    return 0.9 * lambda_ + 0.1 * math.exp(-4 * (len(ids) - 1) / length)


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
@pytest.mark.parametrize("shortcut", ["mat", "id"])
def test_the_exact_cache_equals_full_forward_passes(family: str, shortcut: str, case: Any) -> None:
    at, exits, new = case(family), (1, 2, 3), 10
    got = early_exit.generate(
        at.model, PROMPT, at.maps, lambda_=LAMBDA[family], shortcut=shortcut, max_new_tokens=new
    )
    ids, left = list(PROMPT), []
    for _ in range(new):
        layers = [x[-1] for x in layers_of(at, torch.tensor([ids]))]
        token, layer = plain_walk(at, layers, shortcut, exits, limit_at(ids, LAMBDA[family], new))
        left.append(layer)
        ids.append(token)
    assert got.token_id.values.tolist() == ids[len(PROMPT) :]
    assert got.layer.values.tolist() == left
    assert 1 < np.mean(left) < BLOCKS
    # Each position runs through a block once, when it or a later one needs it.
    passed = [max(left[i:]) for i in range(new)]
    assert int(got.blocks.sum()) == sum(passed)
    assert got.calls.values.tolist() == left
    assert got.position.values.tolist() == list(range(4, 4 + new))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("shortcut", ["mat", "id"])
def test_the_mapped_cache_equals_blocks_fed_with_what_is_mapped(
    family: str, shortcut: str, case: Any
) -> None:
    """The reference keeps what entered each block at each position, and runs blocks whole."""
    at, new = case(family), 10
    got = early_exit.generate(
        at.model,
        PROMPT,
        at.maps,
        lambda_=LAMBDA[family],
        shortcut=shortcut,
        cache="mapped",
        max_new_tokens=new,
    )
    ids, left = list(PROMPT), []
    entered = [list(x[:-1]) for x in layers_of(at, torch.tensor([ids]))[:BLOCKS]]
    for _ in range(new):
        h = layers_of(at, torch.tensor([ids]))[0][-1]
        layers = [h]
        for block in range(BLOCKS):
            entered[block].append(layers[-1])
            layers.append(plain_block(at, block, torch.stack(entered[block]))[-1])
            if block + 1 == BLOCKS:
                break
            found = plain_walk(
                at,
                [*layers, *[layers[-1]] * BLOCKS],
                shortcut,
                (block + 1,),
                limit_at(ids, LAMBDA[family], new),
            )
            if found[1] == block + 1:
                break
        layer = len(layers) - 1
        for later in range(layer, BLOCKS):
            x = layers[layer]
            if shortcut == "mat" and later > layer:
                x = x @ matrix(at.maps[layer, later])
            entered[later].append(x)
        token, _ = plain_walk(at, [*layers, *[layers[-1]] * BLOCKS], shortcut, (layer,), -9)
        left.append(layer)
        ids.append(token)
    assert got.token_id.values.tolist() == ids[len(PROMPT) :]
    assert got.layer.values.tolist() == left
    assert got.blocks.values.tolist() == left
    assert 1 < np.mean(left) < BLOCKS


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
@pytest.mark.parametrize("prompt", [[30], PROMPT])
def test_without_exits_it_is_transformers_own_generation(
    family: str, prompt: list[int], case: Any
) -> None:
    at = case(family)
    expected = at.hf.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=8,
        min_new_tokens=8,
    )[0, len(prompt) :].tolist()
    for options in ({"lambda_": 1.2}, {"exits": ()}):
        got = early_exit.generate(at.model, prompt, at.maps, max_new_tokens=8, **options)
        assert got.token_id.values.tolist() == expected
        assert (got.layer == BLOCKS).all()
        assert (got.blocks == BLOCKS).all()


def test_text_stop_tokens_and_what_is_saved(case: Any, tmp_path: Any) -> None:
    at = case("llama")
    got = early_exit.generate(at.model, "The river", at.maps, max_new_tokens=6, exits=[2])
    assert got.attrs["prompt_ids"][0] == 1  # <s>, as the tokenizer has it
    assert got.attrs["continuation"] == at.model.tokenizer.decode(got.token_id.values.tolist())
    stop = int(got.token_id[2])
    short = early_exit.generate(
        at.model, "The river", at.maps, max_new_tokens=6, exits=[2], stop_ids=[stop]
    )
    first = got.token_id.values.tolist().index(stop)
    assert short.sizes["token"] == first + 1
    assert results.load(results.save(got, tmp_path / "g.zarr")).token_id.equals(got.token_id)


def test_measure_compares_with_the_full_model(case: Any, tmp_path: Any) -> None:
    at = case("gpt2")
    prompts = [PROMPT, [50, 60], [99]]
    got = early_exit.measure(
        at.model, prompts, at.maps, max_new_tokens=5, lambda_=LAMBDA["gpt2"], exits=[2, 3]
    )
    runs = [
        early_exit.generate(
            at.model, p, at.maps, max_new_tokens=5, lambda_=LAMBDA["gpt2"], exits=[2, 3]
        )
        for p in prompts
    ]
    assert float(got.blocks) == pytest.approx(np.mean([float(g.blocks.mean()) for g in runs]))
    agree = []
    for prompt, g in zip(prompts, runs, strict=True):
        ids = [*prompt, *g.token_id.values.tolist()]
        with torch.inference_mode():
            own = at.hf(torch.tensor([ids])).logits[0].argmax(-1).tolist()
        agree.append(np.mean([own[i - 1] == ids[i] for i in range(len(prompt), len(ids))]))
    assert float(got.agreement) == pytest.approx(np.mean(agree))
    assert (got.seconds > 0).all()
    assert got.sizes["way"] == 3
    results.save(got, tmp_path / "m.zarr")


def test_refusals(case: Any) -> None:
    at, bert = case("llama"), case("bert")
    with pytest.raises(AnalysisError, match="not a causal model"):
        early_exit.generate(bert.model, [5, 6], None, shortcut="id")
    with pytest.raises(AnalysisError, match=r"no map 1 → 4 among the maps"):
        early_exit.generate(at.model, PROMPT, None)
    with pytest.raises(AnalysisError, match=r"left early at layers 1…3"):
        early_exit.generate(at.model, PROMPT, at.maps, exits=[4])
    with pytest.raises(AnalysisError, match="cache='none'"):
        early_exit.generate(at.model, PROMPT, at.maps, cache="none")
    with pytest.raises(AnalysisError, match="prompt has no tokens"):
        early_exit.generate(at.model, [], at.maps)
