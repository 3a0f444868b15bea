"""Names that other tools give to the same places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import run_base, sequences, tiny

from actstore.errors import SiteError
from actstore.models import LanguageModel

GPT2 = LanguageModel(tiny("gpt2"), name="mini")
BERT = LanguageModel(tiny("bert"), name="mini-bert")
GPTJ = LanguageModel(tiny("gptj"), name="mini-j")
OLMO = LanguageModel(tiny("olmo2"), name="mini-olmo")
MAMBA = LanguageModel(tiny("mamba"), name="mini-mamba")


@pytest.mark.parametrize(
    ("names", "layers", "expected"),
    [
        ("blocks.2.hook_resid_post", None, {"resid": [3]}),
        ("blocks.0.hook_resid_pre", None, {"resid": [0]}),
        ("blocks.-1.hook_resid_post", None, {"resid": [3]}),
        ("blocks.*.hook_resid_post", None, {"resid": [1, 2, 3]}),
        ("hook_resid_post", [0, -1], {"resid": [1, 3]}),
        ("blocks.*.hook_resid_pre", slice(0, 2), {"resid": [0, 1]}),
        ("blocks.1.hook_resid_mid", None, {"resid_mid": [1]}),
        (["blocks.1.hook_attn_out", "blocks.0.hook_mlp_out"], None, {"attn": [1], "mlp": [0]}),
        ("blocks.1.ln1.hook_normalized", None, {"ln1": [1]}),
        (["hook_embed", "ln_final.hook_normalized"], None, {"embed": [0], "final_norm": [0]}),
        (["layers_output[1]", "layers_input[1]"], None, {"resid": [1, 2]}),
        ("attentions_output[-1]", None, {"attn": [2]}),
        (["resid_pre", "resid_post"], 0, {"resid": [0, 1]}),
        ("transformer.h.1.mlp", None, {"mlp": [1]}),
        ("h.1.mlp.out", None, {"mlp": [1]}),
        ("transformer.h.1.mlp.in", None, {"ln2": [1]}),
        ("transformer.h.1", None, {"resid": [2]}),
        ("transformer.h.1.in", None, {"resid": [1]}),
        ("transformer.h.*.attn", [2], {"attn": [2]}),
        (["transformer.wte", "transformer.ln_f"], None, {"embed": [0], "final_norm": [0]}),
        ("attn.in", [1], {"ln1": [1]}),
        (["ln1.in", "ln2.in"], [1], {"resid": [1], "resid_mid": [1]}),
        ("ln1.in", None, {"resid": [0, 1, 2]}),
        (["resid[3]", "attn[-1]", "mlp.in[0]"], None, {"resid": [3], "attn": [2], "ln2": [0]}),
        ("resid[*]", None, {"resid": [0, 1, 2, 3]}),
        ("ln*", None, {"ln1": [0, 1, 2], "ln2": [0, 1, 2]}),
        ("ln?", -1, {"ln1": [2], "ln2": [2]}),
        ("blocks.[01].hook_mlp_out", None, {"mlp": [0, 1]}),
        ("blocks.1.hook_*_out", None, {"attn": [1], "mlp": [1]}),
        ("blocks.*.hook_*_out", [0], {"attn": [0], "mlp": [0]}),
        ("hidden_states[0]", None, {"resid": [0]}),
        (["resid", "blocks.1.hook_mlp_out"], [0], {"resid": [0], "mlp": [1]}),
    ],
)
def test_names_of_other_tools(names, layers, expected):
    assert GPT2.resolve(names, layers) == expected


def test_a_star_is_every_site():
    assert list(GPT2.resolve("*")) == list(GPT2.sites)
    assert list(GPT2.resolve("*", -1)["resid"]) == [3]


@pytest.mark.parametrize(
    ("lm", "name", "expected"),
    [
        # there hook_attn_out is added to the stream, and then normed
        (BERT, "blocks.1.hook_attn_out", {"attn.out": [1]}),
        (BERT, "blocks.1.hook_normalized_resid_post", {"resid": [2]}),
        (BERT, "blocks.1.hook_normalized_resid_mid", {"mlp.in": [1]}),
        (BERT, "bert.encoder.layer.1", {"resid": [2]}),
        (BERT, "bert.encoder.layer.1.attention", {"mlp.in": [1]}),
        (BERT, "attn.in", {"resid": [0, 1, 2]}),
        (GPTJ, "mlp.in", {"ln1": [0, 1, 2]}),
        (OLMO, "attn.in", {"resid": [0, 1, 2]}),
        (OLMO, "model.layers.1.mlp", {"mlp.out": [1]}),
        (OLMO, "model.layers.1.post_feedforward_layernorm", {"mlp": [1]}),
        (MAMBA, "blocks.1.hook_resid_post", {"resid": [2]}),
    ],
)
def test_names_mean_what_the_architecture_makes_of_them(lm, name, expected):
    assert lm.resolve(name) == expected


@pytest.mark.parametrize(
    ("lm", "names", "layers", "message"),
    [
        (GPT2, "blocks.3.hook_resid_post", None, "block 3 asked for in 'blocks.3.hook_resid_post'"),
        (GPT2, "blocks.3.hook_resid_post", None, "but mini has blocks 0…2"),
        (GPT2, "resid[4]", None, "has layers 0…3 (0 is the embedding)"),
        (GPT2, "hook_resid_pots", None, "close to it: hook_resid_post"),
        (GPT2, "blocks.1.hook_atn_out", None, "blocks.*.hook_attn_out"),
        (GPT2, "transformer.h.0.mpl", None, "close to it: transformer.h.*.mlp"),
        (GPT2, "no*thing", None, "site 'no*thing' asked for, but mini has resid"),
        (GPT2, "hidden_states[4]", None, "hidden_states[4] asked for, but mini has 0…3"),
        (GPT2, "blocks.1.hook_mlp_out", [1], "name their own; leave one out"),
        (GPTJ, "blocks.1.hook_resid_mid", None, "refused on mini-j: attention and feed-forward"),
        (GPTJ, "ln2.in", None, "refused on mini-j: it has no site 'ln2'"),
        (BERT, "blocks.1.hook_resid_post", None, "no site is the sum before that norm"),
        (BERT, "resid_mid", None, "refused on mini-bert"),
        (GPT2, "blocks.1.hook_normalized_resid_post", None, "do not norm each sum"),
        (MAMBA, "attn.out", None, "refused on mini-mamba: no sub-layer of its blocks"),
    ],
)
def test_unknown_names_say_what_is_near(lm, names, layers, message):
    with pytest.raises(SiteError) as caught:
        lm.resolve(names, layers)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "mamba", "t5_encoder", "opt"])
def test_hidden_states_are_transformers_own(family):
    lm = LanguageModel(tiny(family))
    base = lm.model.get_encoder() if family == "t5_encoder" else lm.model.base_model
    ids = sequences(6)[0]
    own = run_base(base, ids, output_hidden_states=True).hidden_states
    assert len(own) == 4
    for index in range(-4, 4):
        if family != "bert" and index in (3, -1):
            with pytest.warns(UserWarning, match="is taken after the final norm"):
                wanted = lm.resolve(f"hidden_states[{index}]")
            assert wanted == {"final_norm": [0]}
        else:
            wanted = lm.resolve(f"hidden_states[{index}]")
        ((site, _),) = wanted.items()
        got = lm.capture([ids], [np.arange(6)], wanted)[site][0]
        assert np.allclose(got, own[index][0].numpy(), rtol=1e-5, atol=1e-5)


def test_all_hidden_states_at_once():
    with pytest.warns(UserWarning, match="final norm"):
        assert GPT2.resolve("hidden_states") == {"resid": [0, 1, 2], "final_norm": [0]}
    assert GPT2.resolve("hidden_states[*]", [0, 2]) == {"resid": [0, 2]}


def test_a_block_that_runs_several_times_has_no_path():
    lm = LanguageModel(tiny("albert"), name="mini-albert")
    with pytest.raises(SiteError, match="asked for, but mini-albert has resid"):
        lm.resolve("albert.encoder.albert_layer_groups.0")
    assert lm.resolve("attn.out", -1) == {"attn.out": [2]}


def test_aliases_are_listed():
    assert GPT2.aliases["blocks.*.hook_resid_post"] == "resid + 1"
    assert GPT2.aliases["attn.in"] == "ln1"
    assert "attn.in" not in BERT.sites
    assert BERT.aliases["attn.in"] == "resid"


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(GPT2._names.known)), block=st.integers(-3, 2))
def test_a_number_in_a_name_is_one_of_all_of_them(name, block):
    whole = GPT2.resolve(name)
    ((site, numbers),) = whole.items()
    if "*" not in name:
        return
    ((same, (number,)),) = GPT2.resolve(name.replace("*", str(min(block, 0)))).items()
    assert same == site
    assert number in numbers


def test_a_model_without_its_head_has_the_same_paths():
    torch.manual_seed(0)
    lm = LanguageModel(hf.GPT2Model(tiny("gpt2").config).eval())
    assert lm.resolve("h.1.attn") == {"attn": [1]}
    assert lm.sites["attn"].module == "h.*.attn"
