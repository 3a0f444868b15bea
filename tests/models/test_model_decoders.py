"""The decoder of an encoder-decoder: the same ids in both, a start token before the decoder's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import every_position, fingers, relative, run_base, sequences, tiny

from actstore.errors import ModelError, UnsupportedModelError
from actstore.models import LanguageModel, load_model

START = 2


def t5(kind=hf.T5ForConditionalGeneration, **options):
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=97,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        **{"decoder_start_token_id": START, **options},
    )
    return kind(config).eval()


def bart(kind=hf.BartForConditionalGeneration):
    torch.manual_seed(0)
    config = hf.BartConfig(
        vocab_size=97,
        d_model=32,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        decoder_start_token_id=START,
    )
    return kind(config).eval()


@pytest.mark.parametrize("build", [t5, bart])
def test_decoder_states_and_logits_are_transformers_own(build):
    model = build()
    before = fingers(model)
    lm = LanguageModel(model, part="decoder")
    assert (lm.n_blocks, lm.has_head, lm.causal) == (3, True, False)
    assert lm.name.endswith("-decoder")
    batch = sequences(7, 3, 10)
    wanted = lm.resolve(["resid", "final_norm", "embed"])
    got = lm.capture(batch, every_position(batch), wanted)
    assert fingers(model) == before
    first = 0
    for ids in batch:
        own_ids = torch.tensor([[START, *ids.tolist()]])
        own = run_base(model, ids, decoder_input_ids=own_ids, output_hidden_states=True)
        rows = slice(first, first + len(ids))
        first += len(ids)
        for layer in range(3):
            theirs = own.decoder_hidden_states[layer][0, 1:].numpy()
            assert relative(got["resid"][layer, rows], theirs) < 1e-5
        assert relative(lm.decode(got["resid"][3, rows]), own.logits[0, 1:].numpy()) < 1e-5
        logits = lm.decode(got["final_norm"][0, rows], normed=True)
        assert relative(logits, own.logits[0, 1:].numpy()) < 1e-5
        table = model.get_decoder().get_input_embeddings()
        with torch.inference_mode():
            assert relative(got["embed"][0, rows], table(own_ids)[0, 1:].numpy()) < 1e-6


def test_some_positions_of_some_sequences():
    lm = LanguageModel(t5(), part="decoder")
    batch = sequences(5, 8)
    whole = lm.capture(batch, every_position(batch), {"resid": [2]})["resid"][0]
    some = lm.capture(batch, [np.array([4, 0]), np.array([7])], {"resid": [2]})["resid"][0]
    assert np.array_equal(some, whole[[4, 0, 12]])


def test_encoder_and_decoder_are_told_apart():
    model = t5()
    encoder, decoder = LanguageModel(model), LanguageModel(model, part="decoder")
    assert (encoder.n_blocks, encoder.name, encoder.has_head) == (2, "t5", False)
    assert encoder.fingerprint() != decoder.fingerprint()
    assert encoder.describe()["part"] == "encoder"
    assert decoder.describe()["part"] == "decoder"
    assert LanguageModel(tiny("gpt2")).describe()["part"] is None
    other = LanguageModel(t5(decoder_start_token_id=3), part="decoder")
    assert other.fingerprint() != decoder.fingerprint()


def test_a_decoder_from_a_folder_has_its_head(tmp_path):
    t5().save_pretrained(tmp_path / "mini")
    lm = load_model(tmp_path / "mini", tokenizer=False, part="decoder")
    assert type(lm.model) is hf.T5ForConditionalGeneration
    assert (lm.name, lm.n_blocks, lm.has_head) == ("mini-decoder", 3, True)
    assert load_model(tmp_path / "mini", tokenizer=False).n_blocks == 2


def test_one_less_token_fits_where_positions_are_learned():
    assert LanguageModel(bart(), part="decoder").max_length == 63
    assert LanguageModel(bart()).max_length == 64


def test_parts_that_are_not_there():
    with pytest.raises(ModelError, match="GPT2LMHeadModel is no encoder-decoder; leave it out"):
        load_model(tiny("gpt2"), part="decoder")
    with pytest.raises(ModelError, match="part='middle' asked for; choose"):
        load_model(t5(), part="middle")
    with pytest.raises(ModelError, match=r"no decoder of its own|is no encoder-decoder"):
        load_model(hf.T5EncoderModel(t5().config), part="decoder")
    with pytest.raises(UnsupportedModelError, match="no decoder_start_token_id"):
        load_model(t5(decoder_start_token_id=None), part="decoder")
