"""What a setting of transformers may move, and a family whose sub-layers add the stream."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import every_position, relative, run_base, sequences, tiny

from actstore.models import LanguageModel


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "falcon", "bert"])
def test_a_setting_moves_transformers_last_state_and_none_of_ours(family):
    """CASES 2: ``tie_last_hidden_states`` says on which side of the final norm the last one is."""
    batch = sequences(5, 8)
    plain = LanguageModel(tiny(family))
    wanted = plain.resolve(["resid", "final_norm"])
    expected = plain.capture(batch, every_position(batch), wanted)
    last = []
    for tied in (True, False):
        model = tiny(family)
        model.config.tie_last_hidden_states = tied
        lm = LanguageModel(model)
        got = lm.capture(batch, every_position(batch), lm.resolve(["resid", "final_norm"]))
        assert np.array_equal(got["resid"], expected["resid"])
        assert np.array_equal(got["final_norm"], expected["final_norm"])
        own = run_base(model.base_model, batch[0], output_hidden_states=True).hidden_states[-1][0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # after the final norm
            ((site, numbers),) = lm.resolve("hidden_states[-1]").items()
        rows = lm.capture(batch[:1], [np.arange(5)], {site: numbers})[site][0]
        assert relative(rows, own.numpy()) < 1e-5
        last.append(site)
    if family in ("gpt2", "llama", "gpt_neox"):
        assert last == ["final_norm", "resid"]
        assert relative(expected["resid"][-1], expected["final_norm"][0]) > 0.1


def test_sub_layers_of_dbrx_add_up_to_the_stream():
    """CASES 3: its attention returns the residual already added, and a norm of it."""
    torch.manual_seed(0)
    config = hf.DbrxConfig(
        d_model=32,
        n_heads=4,
        n_layers=3,
        max_seq_len=64,
        vocab_size=97,
        initializer_range=0.3,
        ffn_config={
            "hidden_size": 32,
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
    )
    lm = LanguageModel(hf.AutoModelForCausalLM.from_config(config).eval())
    batch = sequences(6, 3)
    got = lm.capture(batch, every_position(batch), lm.resolve(["resid", "attn", "mlp"]))
    for block in range(3):
        total = got["resid"][block] + got["attn"][block] + got["mlp"][block]
        assert relative(total, got["resid"][block + 1]) < 1e-5
        assert relative(got["attn"][block], total) > 0.1
        assert relative(got["mlp"][block], total) > 0.1
