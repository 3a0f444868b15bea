"""Names and numbers of sites."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny

from actstore.errors import SiteError
from actstore.models import LanguageModel

GPT2 = LanguageModel(tiny("gpt2"), name="mini")
BERT = LanguageModel(tiny("bert"), name="mini-bert")


@pytest.mark.parametrize(
    ("sites", "layers", "expected"),
    [
        (["resid"], None, {"resid": [0, 1, 2, 3]}),
        ("resid", -1, {"resid": [3]}),
        (["resid"], [3, 0, -1, 0], {"resid": [0, 3]}),
        (["resid"], slice(1, None), {"resid": [1, 2, 3]}),
        (["attn"], slice(None, None, 2), {"attn": [0, 2]}),
        (["resid"], range(2), {"resid": [0, 1]}),
        (["resid"], np.array([2]), {"resid": [2]}),
        (["attn", "resid"], [-1], {"attn": [2], "resid": [3]}),
        (["final_norm", "resid"], [1], {"final_norm": [0], "resid": [1]}),
    ],
)
def test_resolve(sites, layers, expected):
    assert GPT2.resolve(sites, layers) == expected


@pytest.mark.parametrize(
    ("lm", "sites", "layers", "message"),
    [
        (GPT2, ["resid"], [4], "layer 4 asked for, but mini has layers 0…3 (0 is the embedding)"),
        (GPT2, ["resid"], [-5], "layer -5 asked for, but mini has layers 0…3 (0 is the embedding)"),
        (GPT2, ["attn"], [3], "block 3 asked for, but mini has blocks 0…2"),
        (GPT2, ["atn"], None, "site 'atn' asked for, but mini has resid, final_norm, embed"),
        (BERT, ["mlp"], None, "site 'mlp' is refused on mini-bert"),
        (GPT2, ["resid"], [], "no layers asked for"),
        (GPT2, [], None, "no sites asked for"),
    ],
)
def test_errors_say_what_there_is(lm, sites, layers, message):
    with pytest.raises(SiteError) as caught:
        lm.resolve(sites, layers)
    assert message in str(caught.value)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-4, 3), min_size=1))
def test_resolved_numbers_are_sorted_distinct_and_stable(layers):
    once = GPT2.resolve(["resid"], layers)["resid"]
    assert once == sorted(set(once))
    assert GPT2.resolve(["resid"], once)["resid"] == once
    assert once == sorted({np.arange(4)[n] for n in layers})
