"""Fingerprints change with what matters and with nothing else."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_models import tiny

from actstore.models import LanguageModel


def fingerprint(model):
    return LanguageModel(model).fingerprint()


def test_the_same_weights_give_the_same_fingerprint_in_another_place():
    first = tiny("gpt2")
    again = type(first)(first.config)
    again.load_state_dict(first.state_dict())
    again.lm_head.weight = torch.nn.Parameter(again.lm_head.weight.detach().clone())
    assert fingerprint(first) == fingerprint(again)
    assert len(fingerprint(first)) == 64


def flip_a_bit(model):
    model.transformer.h[2].mlp.c_proj.weight.data.view(torch.int32)[3, 4] ^= 1


def narrow(model):
    model.bfloat16()


def swap_two(model):
    a, b = model.transformer.h[0].ln_1, model.transformer.h[0].ln_2
    a.weight.data.fill_(2.0)
    model.transformer.h[0].ln_1, model.transformer.h[0].ln_2 = b, a


@pytest.mark.parametrize("change", [flip_a_bit, narrow, swap_two])
def test_any_change_of_the_weights_shows(change):
    model = tiny("gpt2")
    model.transformer.h[0].ln_2.weight.data.fill_(2.0)
    if change is swap_two:
        model.transformer.h[0].ln_2.weight.data.fill_(1.0)
    before = fingerprint(model)
    change(model)
    assert fingerprint(model) != before


def test_a_description_is_json_and_complete(tiny_gpt2, tiny_tokenizer):
    lm = LanguageModel(tiny_gpt2, tiny_tokenizer, name="mini", origin={"source": "here"})
    about = json.loads(json.dumps(lm.describe()))
    assert about["fingerprint"] == lm.fingerprint()
    assert about | {"name": "mini", "source": "here", "class": "GPT2LMHeadModel"} == about
    assert about | {"n_blocks": 3, "width": 32, "vocab_size": 320, "causal": True} == about
    assert about | {"dtype": "float32", "device": "cpu", "attn_implementation": "sdpa"} == about
    assert set(about["versions"]) == {"torch", "transformers"}


def test_a_tokenizer_is_known_by_its_content_not_by_its_last_use(
    tiny_gpt2, tiny_tokenizer, bos_tokenizer
):
    def known(tokenizer):
        return LanguageModel(tiny_gpt2, tokenizer).describe()["tokenizer_fingerprint"]

    before = known(tiny_tokenizer)
    tiny_tokenizer(["a b", "c"], truncation=True, max_length=2)
    assert known(tiny_tokenizer) == before
    assert known(bos_tokenizer) != before
    assert known(None) is None
