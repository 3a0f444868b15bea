"""Options of loading reach transformers and are recorded; a loaded model stays as it was."""

from __future__ import annotations

import copy
import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import every_position, fingers, relative, sequences, tiny

from actstore.errors import ModelError
from actstore.models import LanguageModel, load_model


@pytest.fixture
def folder(tmp_path, tiny_gpt2, tiny_tokenizer):
    path = tmp_path / "model"
    tiny_gpt2.save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return path


def states(lm, *lengths):
    batch = sequences(*lengths)
    return lm.capture(batch, every_position(batch), {"resid": [0, lm.n_blocks]})["resid"]


def test_nothing_of_a_loaded_model_or_its_tokenizer_changes(tiny_gpt2, tiny_tokenizer):
    model, tokenizer = tiny_gpt2.train(), copy.deepcopy(tiny_tokenizer)
    tokenizer.padding_side = "left"
    model.transformer.h[0].eval()
    model.transformer.wte.weight.requires_grad_(False)
    model.generation_config.max_new_tokens = 7

    def everything():
        return (
            fingers(model),
            [
                (name, weight.requires_grad, weight.grad)
                for name, weight in model.named_parameters()
            ],
            {name: weight.clone() for name, weight in model.state_dict().items()},
            model.generation_config.to_dict(),
            model.config.to_dict(),
            (tokenizer.padding_side, tokenizer.pad_token, tokenizer.truncation_side),
            (torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()),
        )

    before = everything()
    lm = load_model(model, tokenizer=tokenizer)
    rows = states(lm, 5, 3)
    lm.decode(rows[1])
    lm.describe()
    lm.resolve("*")
    after = everything()
    for one, other in zip(before, after, strict=True):
        if isinstance(one, dict) and all(isinstance(v, torch.Tensor) for v in one.values()):
            assert all(torch.equal(one[name], other[name]) for name in one)
        else:
            assert one == other


def test_a_probe_that_fails_leaves_the_model_as_it_was():
    model = tiny("gpt2").train()
    before = fingers(model)

    def fail(*_):
        raise RuntimeError("no memory\nand a second line")

    handle = model.transformer.h[1].mlp.register_forward_hook(fail)
    with pytest.raises(ModelError, match=r"check 'forward' failed: .* no memory") as caught:
        LanguageModel(model)
    assert "\n" not in str(caught.value)
    handle.remove()
    assert fingers(model) == before


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_attention_implementations_agree_and_are_recorded(family, tmp_path):
    tiny(family).save_pretrained(tmp_path)
    by = {
        name: load_model(tmp_path, tokenizer=False, attn_implementation=name)
        for name in ("eager", "sdpa")
    }
    for name, lm in by.items():
        assert lm.describe()["attn_implementation"] == name
        assert lm.model.config._attn_implementation == name
    assert relative(states(by["eager"], 7, 2), states(by["sdpa"], 7, 2)) < 1e-5


def test_an_attention_that_is_not_there_is_refused(folder):
    with pytest.raises(ModelError, match="cannot be loaded: ") as caught:
        load_model(folder, attn_implementation="flash_attention_9")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spread", ["cpu", "auto", {"transformer": "cpu", "lm_head": "cpu"}])
def test_a_device_map_is_passed_on(folder, spread):
    pytest.importorskip("accelerate")
    if torch.cuda.is_available():
        pytest.skip("for machines without a GPU")
    plain = load_model(folder, device="cpu")
    mapped = load_model(folder, device_map=spread)
    assert mapped.describe()["device"] == "cpu"
    assert np.array_equal(states(plain, 5, 3), states(mapped, 5, 3))
    assert plain.fingerprint() == mapped.fingerprint()


def test_a_device_map_that_offloads_is_refused(folder, tmp_path):
    pytest.importorskip("accelerate")
    spread = {"transformer.wte": "cpu", "transformer.wpe": "cpu", "transformer.drop": "cpu"}
    spread |= {"transformer.h": "disk", "transformer.ln_f": "cpu", "lm_head": "cpu"}
    with pytest.raises(ModelError) as caught:
        load_model(folder, device_map=spread)
    assert "offload" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub's local cache with two revisions of one model, and no network."""
    cache = tmp_path / "hub"
    root = cache / "models--someone--mini"
    for name, seed in (("main", 1), ("v1", 2)):
        commit = str(seed) * 40
        config = tiny("gpt2").config
        torch.manual_seed(seed)
        hf.GPT2LMHeadModel(config).save_pretrained(root / "snapshots" / commit)
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / name).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))


def test_a_revision_of_a_hub_id_is_what_is_loaded_and_recorded(hub):
    main = load_model("someone/mini", tokenizer=False)
    old = load_model("someone/mini", tokenizer=False, revision="v1")
    assert main.name == old.name == "mini"
    assert main.describe()["revision"] == "1" * 40
    assert old.describe()["revision"] == "2" * 40
    assert old.describe()["source"] == "someone/mini"
    assert main.fingerprint() != old.fingerprint()
    with pytest.raises(ModelError, match="someone/mini cannot be loaded") as caught:
        load_model("someone/mini", tokenizer=False, revision="v2")
    assert "\n" not in str(caught.value)


CODE = """
from transformers import GPT2Config, GPT2LMHeadModel
open({mark!r}, "w").close()
class Config(GPT2Config):
    model_type = "mine"
class Model(GPT2LMHeadModel):
    config_class = Config
"""


@pytest.fixture
def folder_with_code(folder, tmp_path, monkeypatch):
    """A model whose class is in its own folder; importing that leaves a mark."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    mark = tmp_path / "ran"
    (folder / "mine.py").write_text(CODE.format(mark=str(mark)))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "mine"
    config["auto_map"] = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, mark


def test_code_in_a_folder_is_refused_and_does_not_run(folder_with_code):
    folder, mark = folder_with_code
    with pytest.raises(ModelError, match="pass trust_remote_code=True if you trust it") as caught:
        load_model(folder, tokenizer=False)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_code_in_a_folder_runs_when_it_is_trusted(folder_with_code):
    folder, mark = folder_with_code
    lm = load_model(folder, tokenizer=False, trust_remote_code=True)
    assert mark.exists()
    assert type(lm.model).__name__ == "Model"
    assert (lm.n_blocks, lm.has_head) == (3, True)


def test_code_beside_a_known_architecture_does_not_run(folder_with_code):
    folder, mark = folder_with_code
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    assert type(load_model(folder).model) is hf.GPT2LMHeadModel
    assert not mark.exists()


def test_code_of_a_tokenizer_does_not_run(folder_with_code):
    folder, mark = folder_with_code
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    tokenizer |= {"auto_map": {"AutoTokenizer": [None, "mine.Tok"]}, "tokenizer_class": "MyTok"}
    path.write_text(json.dumps(tokenizer))
    with suppress(ModelError):  # that it cannot be had without its code is as good
        load_model(folder)
    assert not mark.exists()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_padded_bert_is_finite_and_equals_its_texts_run_alone(tmp_path, attention, dtype):
    tiny("bert").save_pretrained(tmp_path)
    lm = load_model(tmp_path, tokenizer=False, dtype=dtype, attn_implementation=attention)
    batch = sequences(12, 1, 5)
    rows = lm.capture(batch, every_position(batch), {"resid": [3]})["resid"][0]
    assert np.isfinite(rows).all()
    alone = [lm.capture([ids], [np.arange(len(ids))], {"resid": [3]})["resid"][0] for ids in batch]
    tolerance = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-4}[dtype]
    assert relative(rows.astype(np.float64), np.concatenate(alone)) < tolerance


def test_a_folder_may_be_moved(folder, tmp_path):
    before = load_model(folder, name="a").describe()
    shutil.move(folder, tmp_path / "elsewhere" / "model")
    assert load_model(tmp_path / "elsewhere" / "model", name="a").describe() == before
