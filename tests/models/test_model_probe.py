"""What is not understood is refused, and the refusal names the check."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import fingers, relative, run_base, sequences, tiny
from torch import nn

from actstore.errors import ModelError, UnsupportedModelError
from actstore.models import Family, LanguageModel, families, register_family


@pytest.fixture(autouse=True)
def _own_table(monkeypatch):
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))


def refused(model, check):
    before = fingers(model)
    with pytest.raises(UnsupportedModelError, match=f"check '{check}' failed") as caught:
        LanguageModel(model)
    assert "\n" not in str(caught.value)
    assert fingers(model) == before
    return str(caught.value)


def small(config, **options):
    torch.manual_seed(0)
    return config(vocab_size=97, **options)


def test_no_list_of_blocks():
    config = small(hf.XLMConfig, emb_dim=32, n_layers=2, n_heads=4)
    message = refused(hf.XLMWithLMHeadModel(config).eval(), "blocks")
    assert "found attentions (2), layer_norm1 (2), ffns (2), layer_norm2 (2)" in message
    assert "register_family(Family('xlm', blocks='path.to.list'))" in message


def test_blocks_in_another_order_than_they_run():
    register_family(Family("gpt2", blocks=lambda base, config: (list(base.h)[::-1], "h.*")))
    assert "(call 0)" in refused(tiny("gpt2"), "blocks")


def test_states_that_padding_reaches():
    config = small(
        hf.FNetConfig, hidden_size=32, num_hidden_layers=2, intermediate_size=48, pad_token_id=0
    )
    refused(hf.FNetForMaskedLM(config).eval(), "alone")


def test_something_between_two_blocks():
    model = tiny("gpt2")
    model.transformer.h[2].register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] + 1, *args[1:]), kwargs), with_kwargs=True
    )
    assert "enters block 2" in refused(model, "chaining")


def test_something_after_the_last_block_that_is_no_module():
    model = tiny("gpt2")
    inner = type(model.transformer).forward

    def forward(self, *args, **kwargs):
        output = inner(self, *args, **kwargs)
        output.last_hidden_state = output.last_hidden_state * 2
        return output

    model.transformer.__class__ = type("Doubled", (hf.GPT2Model,), {"forward": forward})
    assert "ln_f" in refused(model, "final_norm")


def test_a_head_that_does_more_than_it_is_given():
    model = tiny("gpt2")
    inner = type(model).forward

    def forward(self, *args, **kwargs):
        output = inner(self, *args, **kwargs)
        output.logits = output.logits + kwargs["input_ids"][..., None]
        return output

    model.__class__ = type("Peeking", (hf.GPT2LMHeadModel,), {"forward": forward})
    assert "load the base model" in refused(model, "logits")


def test_weights_that_are_nan():
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = float("nan")
    assert "layer 2 of transformer.h.* holds NaN" in refused(model, "finite")


def test_states_in_another_layout():
    config = small(hf.XLNetConfig, d_model=32, n_layer=2, n_head=4, d_inner=48)
    assert "shape (6, 2, 32)" in refused(hf.XLNetLMHeadModel(config).eval(), "stream")


def test_a_model_that_needs_more_than_token_ids():
    config = small(hf.XmodConfig, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    assert "Input language unknown" in refused(hf.XmodForMaskedLM(config).eval(), "forward")


def test_weights_that_are_elsewhere():
    with torch.device("meta"):
        model = hf.GPT2LMHeadModel(tiny("gpt2").config)
    with pytest.raises(ModelError, match=r"the device map has \d+ weights offloaded"):
        LanguageModel(model)


class TwoLists(hf.GPT2Model):
    """A GPT-2 with a second list of as many blocks, which it does not run."""

    def __init__(self, config):
        super().__init__(config)
        self.spare = nn.ModuleList(type(self.h[0])(config, layer_idx=i) for i in range(3))


def test_a_registered_family_settles_what_structure_leaves_open():
    torch.manual_seed(0)
    model = TwoLists(tiny("gpt2").config).eval()
    message = refused(model, "blocks")
    assert "found h (3), spare (3)" in message
    register_family(Family("gpt2", blocks="h"))
    lm = LanguageModel(model)
    assert lm.sites["resid"].module == "h.*"
    assert lm.capture(sequences(3), [np.arange(3)], {"resid": [3]})["resid"].shape == (1, 3, 32)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [("spare", "0 blocks ran .* expected the 3 of spare"), ("layers", "no ModuleList of TwoLists")],
)
def test_a_registered_family_is_checked_too(blocks, message):
    torch.manual_seed(0)
    register_family(Family("gpt2", blocks=blocks))
    with pytest.raises(UnsupportedModelError, match=message):
        LanguageModel(TwoLists(tiny("gpt2").config).eval())


def test_causality_is_measured_not_believed():
    config = tiny("bert").config
    config.is_decoder = True
    torch.manual_seed(0)
    assert LanguageModel(hf.BertLMHeadModel(config).eval()).causal
    assert not LanguageModel(tiny("bert")).causal


def test_a_decoder_inside_a_wrapper_is_found():
    config = small(
        hf.WhisperConfig,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    lm = LanguageModel(hf.WhisperForCausalLM(config).eval())
    assert (lm.causal, lm.has_head, lm.n_blocks) == (True, True, 2)


def test_the_text_part_of_a_composite_model_is_found():
    text = tiny("gemma3").config.to_dict()
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 28,
        "patch_size": 14,
    }
    config = hf.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=90
    )
    torch.manual_seed(0)
    model = hf.Gemma3ForConditionalGeneration(config).eval()
    lm = LanguageModel(model)
    assert lm.sites["resid"].module == "model.language_model.layers.*"
    ids = sequences(6)[0]
    states = lm.capture([ids], [np.arange(6)], {"resid": [3]})["resid"][0]
    own = run_base(model, ids).logits[0].numpy()
    assert relative(lm.decode(states), own) < 1e-4


def test_position_tables_limit_the_length():
    limits = {name: LanguageModel(tiny(name)).max_length for name in ("gpt2", "roberta", "opt")}
    assert limits == {"gpt2": 64, "roberta": 62, "opt": 64}
    assert LanguageModel(tiny("llama")).max_length is None
