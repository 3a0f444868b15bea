"""Every family against transformers' own tensors, run one sequence at a time."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import (
    ALL,
    FAMILIES,
    RAW,
    STREAM,
    every_position,
    fingers,
    relative,
    run_base,
    sequences,
    tiny,
)

from actstore.models import LanguageModel

BLOCKS = ALL - STREAM | RAW | {"attn.in", "mlp.in", "ln1.in", "ln2.in"}
ADDITIVE = [name for name, (*_, sites) in FAMILIES.items() if "attn" in sites]


def encoder_or_base(model):
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


@pytest.mark.parametrize("family", FAMILIES)
def test_facts_found_by_the_probe(family):
    model = tiny(family)
    before = fingers(model)
    _, causal, has_head, sites = FAMILIES[family]
    lm = LanguageModel(model)
    assert (lm.causal, lm.has_head, set(lm.sites)) == (causal, has_head, sites)
    assert set(lm.sites) <= STREAM | BLOCKS
    for name in BLOCKS:  # each is a site, another name of one, or refused: exactly one of the three
        assert (name in lm.sites) + (name in lm.aliases) + (name in lm.refused) == 1, name
    assert lm.n_blocks == (4 if family == "gpt_neo" else 3)
    assert (lm.width, lm.vocab_size) == (32, 97)
    assert lm.sites["resid"].size == lm.n_blocks + 1
    assert fingers(model) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_stream_final_norm_and_logits_are_transformers_own(family):
    model = tiny(family)
    lm = LanguageModel(model)
    batch = sequences(7, 3, 10)
    wanted = lm.resolve(["resid", "final_norm", "embed"])
    got = lm.capture(batch, every_position(batch), wanted)
    alone = [run_base(encoder_or_base(model), ids, output_hidden_states=True) for ids in batch]
    count = lm.n_blocks
    # Mamba lists the states behind each block, the others those before it
    first = 1 if family in ("mamba", "mamba2") else 0
    for layer in range(first, count + first):
        own = np.concatenate([o.hidden_states[layer - first][0].numpy() for o in alone])
        assert relative(got["resid"][layer], own) < 1e-4
    last = np.concatenate([o.last_hidden_state[0].numpy() for o in alone])
    assert relative(got["final_norm"][0], last) < 1e-4
    if lm.has_head:
        own = np.concatenate([run_base(model, ids).logits[0].numpy() for ids in batch])
        for states, normed in ((got["resid"][count], False), (got["final_norm"][0], True)):
            logits = lm.decode(states, normed=normed)
            assert logits.dtype == np.float32
            assert np.abs(logits - own).max() < 1e-4 * np.abs(own).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_finds_the_same_places(family):
    exact, rounded = LanguageModel(tiny(family)), LanguageModel(tiny(family).bfloat16())
    assert rounded.causal == exact.causal
    assert list(rounded.sites) == list(exact.sites)
    inside = {name: place for name, place in exact.aliases.items() if name.count(".") < 2}
    assert {name: rounded.aliases.get(name) for name in inside} == inside


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_equals_the_same_text_run_alone(family):
    lm = LanguageModel(tiny(family))
    batch = sequences(2, 9, 5, 1, 12)
    wanted = lm.resolve(list(lm.sites))
    together = lm.capture(batch, every_position(batch), wanted)
    alone = [lm.capture([ids], [np.arange(len(ids))], wanted) for ids in batch]
    for site in lm.sites:
        one_by_one = np.concatenate([part[site] for part in alone], axis=1)
        assert relative(together[site], one_by_one) < 1e-4, site


@pytest.mark.parametrize("family", ADDITIVE)
def test_contributions_add_up_to_the_stream(family):
    lm = LanguageModel(tiny(family))
    batch = sequences(6, 8)
    got = lm.capture(batch, every_position(batch), lm.resolve(list(lm.sites)))
    before, after = got["resid"][:-1], got["resid"][1:]
    assert np.abs(got["attn"]).min(axis=(1, 2)).max() > 0
    assert relative(before + got["attn"] + got["mlp"], after) < 1e-5
    if "resid_mid" in got:
        assert relative(before + got["attn"], got["resid_mid"]) < 1e-5


@pytest.mark.parametrize(
    ("family", "ln1", "ln2", "reads"),
    [
        ("gpt2", "ln_1", "ln_2", "resid_mid"),
        ("llama", "input_layernorm", "post_attention_layernorm", "resid_mid"),
        ("gemma2", "input_layernorm", "pre_feedforward_layernorm", "resid_mid"),
        ("gpt_neox", "input_layernorm", "post_attention_layernorm", "resid"),
        ("falcon_new", "ln_attn", "ln_mlp", "resid"),
        ("modernbert", "attn_norm", "mlp_norm", "resid_mid"),
    ],
)
def test_norm_sites_are_the_norms_of_what_they_read(family, ln1, ln2, reads):
    import torch

    lm = LanguageModel(tiny(family))
    batch = sequences(6)
    got = lm.capture(batch, every_position(batch), lm.resolve(list(lm.sites)))
    for block in range(lm.n_blocks):
        path = lm.sites["resid"].module.replace("*", str(block))
        module = lm.model.get_submodule(path)
        for site, name, source in (("ln1", ln1, "resid"), ("ln2", ln2, reads)):
            assert lm.sites[site].module.endswith("*." + name)
            with torch.inference_mode():
                own = getattr(module, name)(torch.from_numpy(got[source][block])).numpy()
            assert relative(got[site][block], own) < 1e-5


@pytest.mark.parametrize(
    ("family", "attn", "mlp"),
    [
        ("gpt2", "transformer.h.*.attn", "transformer.h.*.mlp"),
        ("llama", "model.layers.*.self_attn", "model.layers.*.mlp"),
        # these return the residual already added, so the site is the module inside
        ("bloom", "transformer.h.*.self_attention.dense", "transformer.h.*.mlp.dense_4h_to_h"),
        # a norm follows the sub-layer before it is added
        (
            "olmo2",
            "model.layers.*.post_attention_layernorm",
            "model.layers.*.post_feedforward_layernorm",
        ),
        ("opt", "model.decoder.layers.*.self_attn", "model.decoder.layers.*.fc2"),
    ],
)
def test_contribution_sites_name_the_module_that_adds(family, attn, mlp):
    lm = LanguageModel(tiny(family))
    assert (lm.sites["attn"].module, lm.sites["mlp"].module) == (attn, mlp)


def test_granite_scales_what_its_modules_return():
    lm = LanguageModel(tiny("granite"))
    batch = sequences(5)
    got = lm.capture(batch, every_position(batch), {"ln2": [1], "mlp": [1]})
    import torch

    with torch.inference_mode():
        raw = lm.model.model.layers[1].mlp(torch.from_numpy(got["ln2"]))[0].numpy()
    assert relative(got["mlp"][0], 0.5 * raw) < 1e-5
    assert "0.5" in lm.sites["mlp"].description


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "albert"])
def test_module_paths_lead_to_what_the_modules_take_and_return(family):
    from actstore.models.running import hooked
    from actstore.models.tensors import hidden_input, hidden_output

    lm = LanguageModel(tiny(family))
    ids = sequences(7)[0]
    seen = {}
    handles = []
    paths = [name for name in lm.aliases if name.endswith((".in", ".out")) and "." in name[:-4]]
    for path in paths:
        name, _, side = path.replace("*", "1").rpartition(".")
        try:
            module = lm.model.get_submodule(name)
        except AttributeError:
            continue  # a path without the model's prefix, or a site of that name

        def before(module, args, kwargs, path=path):
            seen[path] = hidden_input(args, kwargs).clone()

        def after(module, args, output, path=path):
            seen[path] = hidden_output(output).clone()

        if side == "in":
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        else:
            handles.append(module.register_forward_hook(after))
    with hooked(*handles):
        run_base(encoder_or_base(lm.model), ids)
    assert len(seen) >= (4 if "attn.in" in lm.refused else 10)
    for path, states in seen.items():
        wanted = lm.resolve([path.replace("*", "1")])
        ((site, (_number,)),) = wanted.items()
        got = lm.capture([ids], [np.arange(7)], wanted)[site][0]
        assert relative(got, states.reshape(got.shape).numpy()) < 1e-5, (path, site)


def test_post_norm_branches_are_normed_with_the_stream():
    import torch

    for family in ("bert", "distilbert", "opt_350m_shape"):
        lm = LanguageModel(tiny(family))
        batch = sequences(6)
        got = lm.capture(batch, every_position(batch), lm.resolve("*"))
        for block in range(3):
            path = lm.sites["mlp.in"].module.replace("*", str(block))
            with torch.inference_mode():
                total = torch.from_numpy(got["resid"][block] + got["attn.out"][block])
                middle = lm.model.get_submodule(path)(total).numpy()
            assert relative(got["mlp.in"][block], middle) < 1e-5
            assert relative(got["resid"][block] + got["attn.out"][block], middle) > 1e-2


def test_raw_outputs_and_additions_differ_by_the_norm_or_the_multiplier():
    import torch

    lm = LanguageModel(tiny("olmo2"))
    batch = sequences(6)
    got = lm.capture(batch, every_position(batch), {"attn": [1], "attn.out": [1]})
    norm = lm.model.model.layers[1].post_attention_layernorm
    with torch.inference_mode():
        assert relative(norm(torch.from_numpy(got["attn.out"][0])).numpy(), got["attn"][0]) < 1e-5
    lm = LanguageModel(tiny("granite"))
    got = lm.capture(batch, every_position(batch), {"mlp": [1], "mlp.out": [1]})
    assert relative(0.5 * got["mlp.out"], got["mlp"]) < 1e-6


def test_post_norm_models_refuse_additive_sites_by_name():
    from actstore.errors import SiteError

    lm = LanguageModel(tiny("bert"), name="bert")
    with pytest.raises(SiteError, match=r"'attn' is refused on bert: .*it has resid"):
        lm.resolve(["attn"])
