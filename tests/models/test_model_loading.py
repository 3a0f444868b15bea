"""Folders, ids and GGUF files, whole and broken."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import relative, run_base, sequences, tiny

from actstore.errors import ActstoreError, MissingDependencyError, ModelError
from actstore.models import LanguageModel, load_model


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "mini gpt2"
    tiny("gpt2").save_pretrained(folder)
    return folder


@pytest.fixture
def copy_of_gpt2(gpt2_folder, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(gpt2_folder, folder)
    return folder


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def saved(model, folder, **changes):
    model.save_pretrained(folder)
    change_config(folder, **changes)
    return load_model(folder, tokenizer=False)


def test_a_folder_loads_with_its_head_its_tokenizer_and_a_safe_name(
    copy_of_gpt2, tiny_tokenizer, tmp_path
):
    tiny_tokenizer.save_pretrained(copy_of_gpt2)
    lm = load_model(str(copy_of_gpt2))
    assert (lm.name, lm.has_head, lm.dtype) == ("copy", True, torch.float32)
    assert lm.tokenizer.get_vocab() == tiny_tokenizer.get_vocab()
    assert not lm.model.training
    shutil.move(copy_of_gpt2, tmp_path / "ünsafe name!")
    assert load_model(tmp_path / "ünsafe name!").name == "nsafe-name"
    assert load_model(tmp_path / "ünsafe name!", name="mine").name == "mine"


def test_options_are_passed_on(gpt2_folder):
    lm = load_model(
        gpt2_folder, tokenizer=False, dtype="bfloat16", attn_implementation="eager", device="cpu"
    )
    about = lm.describe()
    assert (about["dtype"], about["attn_implementation"]) == ("bfloat16", "eager")
    assert (about["device"], about["name"]) == ("cpu", "mini-gpt2")


def test_a_language_model_is_returned_as_it_is_and_a_loaded_model_is_wrapped():
    model = tiny("gpt2")
    lm = load_model(model)
    assert lm.model is model
    assert lm.name == "gpt2"
    assert lm.tokenizer is None
    assert load_model(lm) is lm


def test_a_tokenizer_may_come_from_another_folder(gpt2_folder, tiny_tokenizer, tmp_path):
    tiny_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    lm = load_model(gpt2_folder, tokenizer=str(tmp_path))
    assert lm.tokenizer.get_vocab() == tiny_tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("family", "inner", "says", "kind"),
    [
        # a tied head is in the checkpoint although no weight bears its name
        ("gpt2", "transformer", "GPT2LMHeadModel", hf.GPT2LMHeadModel),
        # this head has weights of its own, which the checkpoint lacks: drawn at random otherwise
        ("bert", "bert", "BertForMaskedLM", hf.BertModel),
        ("bert", "bert", "BertForSequenceClassification", hf.BertModel),
    ],
)
def test_a_head_is_never_made_up(tmp_path, family, inner, says, kind):
    lm = saved(getattr(tiny(family), inner), tmp_path, architectures=[says])
    assert type(lm.model) is kind
    assert lm.has_head == (kind is hf.GPT2LMHeadModel)


def test_a_pretraining_checkpoint_gives_its_masked_head(tmp_path):
    model = hf.BertForPreTraining(tiny("bert").config).eval()
    lm = saved(model, tmp_path)
    ids = sequences(5)[0]
    states = lm.capture([ids], [np.arange(5)], {"resid": [3]})["resid"][0]
    own = run_base(model, ids).prediction_logits[0].numpy()
    assert relative(lm.decode(states), own) < 1e-4


def test_a_pooler_that_no_checkpoint_has_does_not_change_the_fingerprint(tmp_path):
    config = hf.BertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    hf.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    first = load_model(tmp_path, tokenizer=False)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(1)
    again = load_model(tmp_path, tokenizer=False)
    assert any("pooler" in name for name, _ in first.model.named_parameters())
    assert first.fingerprint() == again.fingerprint()


def test_the_encoder_of_an_encoder_decoder_is_loaded(tmp_path):
    lm = saved(hf.T5ForConditionalGeneration(tiny("t5_encoder").config), tmp_path)
    assert type(lm.model) is hf.T5EncoderModel
    assert (lm.causal, lm.has_head) == (False, False)


def break_nothing(folder):
    """The folder has no tokenizer."""


def remove_config(folder):
    (folder / "config.json").unlink()


def break_config(folder):
    (folder / "config.json").write_text("{")


def remove_weights(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def deepen(folder):
    change_config(folder, n_layer=5)


def widen(folder):
    change_config(folder, n_embd=64)


def rename_type(folder):
    change_config(folder, model_type="unheard-of")


@pytest.mark.parametrize(
    ("broken", "options", "message"),
    [
        (break_nothing, {}, "has no tokenizer files; pass tokenizer="),
        (remove_config, {}, "has no config.json, so it holds no model"),
        (break_config, {}, "not a valid JSON file"),
        (remove_weights, {"tokenizer": False}, "has no .*safetensors weights .* convert it"),
        (cut_weights, {"tokenizer": False}, "cannot be loaded: .*not fully covered"),
        (deepen, {"tokenizer": False}, r"lacks 24 weights of GPT2LMHeadModel, first .*h\.3\."),
        (widen, {"tokenizer": False}, "shapes of its weights are not those of its config.json"),
        (rename_type, {"tokenizer": False}, "unheard-of.* does not recognize"),
        (break_nothing, {"tokenizer": False, "dtype": "flot"}, "cannot be loaded: .*flot"),
        (break_nothing, {"tokenizer": False, "device": "cuda:99"}, "device 'cuda:99'"),
    ],
)
def test_broken_folders_give_one_clear_line(copy_of_gpt2, broken, options, message):
    broken(copy_of_gpt2)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(copy_of_gpt2, **options)
    assert "\n" not in str(caught.value)


def test_code_of_a_model_folder_does_not_run_unless_trusted(copy_of_gpt2):
    mark = copy_of_gpt2 / "ran"
    change_config(
        copy_of_gpt2,
        model_type="mine",
        auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
    )
    (copy_of_gpt2 / "mine.py").write_text(f"open({str(mark)!r}, 'w')")
    with pytest.raises(ModelError, match="pass trust_remote_code=True if you trust it"):
        load_model(copy_of_gpt2, tokenizer=False)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "no-such-owner/no-such-model",
            "no-such-owner/no-such-model cannot be loaded: .*out of reach",
        ),
        ("./nowhere", "folder ./nowhere does not exist"),
        ("/nowhere/at/all", "folder /nowhere/at/all does not exist"),
        ("nowhere.gguf", "file nowhere.gguf does not exist"),
        (3, "a int given as model, expected a hub id"),
        (torch.nn.Linear(2, 2), "a Linear given as model"),
    ],
)
def test_what_is_no_model(model, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(model)
    assert "\n" not in str(caught.value)


def test_gguf_names_the_package_it_needs(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name)
    )
    with pytest.raises(MissingDependencyError, match=r"a.gguf needs the package 'gguf': pip"):
        load_model(tmp_path / "a.gguf")


def write_gguf(path, model):
    """A Llama in float32 GGUF, with the rows of q and k in that format's own order."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, weight in model.state_dict().items():
        target = name.replace("model.layers.", "blk.")
        for ours, theirs in names.items():
            target = target.replace(ours + ".", theirs + ".")
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        count = next((n for key, n in heads.items() if key in name), None)
        if count is not None:
            halves = weight.reshape(count, 2, -1, weight.shape[1])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(target, weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_loads_with_its_head_and_says_so(tmp_path):
    pytest.importorskip("gguf")
    model = tiny("llama")
    write_gguf(tmp_path / "mini-Q0.gguf", model)
    lm = load_model(tmp_path / "mini-Q0.gguf", tokenizer=False)
    about = lm.describe()
    assert (lm.name, lm.has_head, about["dtype"]) == ("mini-Q0", True, "float32")
    assert about["quantisation"] == "dequantised from mini-Q0.gguf"
    ids = sequences(7)[0]
    states = lm.capture([ids], [np.arange(7)], {"resid": [3]})["resid"][0]
    assert relative(lm.decode(states), run_base(model, ids).logits[0].numpy()) < 1e-3


@pytest.mark.real
def test_the_capital_of_france(real_model_folder):
    lm = load_model(real_model_folder)
    assert isinstance(lm, LanguageModel)
    assert (lm.n_blocks, lm.width, lm.vocab_size, lm.causal) == (30, 576, 49152, True)
    ids = np.array(lm.tokenizer("The capital of France is", add_special_tokens=False)["input_ids"])
    states = lm.capture([ids], [np.array([len(ids) - 1])], lm.resolve("resid", -1))["resid"][0]
    logits = lm.decode(states)[0].astype(np.float64)
    chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert lm.tokenizer.decode([chances.argmax()]) == " Paris"
    assert chances.max() == pytest.approx(0.7725, abs=2e-3)


def test_every_loading_error_is_one_of_ours():
    assert issubclass(ModelError, ActstoreError)
    assert issubclass(MissingDependencyError, ImportError)
