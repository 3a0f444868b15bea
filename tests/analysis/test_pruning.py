"""Models with fewer blocks against transformers' own, with hooks in the place of blocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import actstore
from actstore.errors import AnalysisError, ModelError
from actstore.models.provenance import weights_fingerprint
from analysis import perplexity, pruning
from analysis.pruning.modules import blocks_of

BLOCKS, WIDTH, VOCABULARY = 4, 16, 97
_HIDDEN: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_LLAMA = {
    **_HIDDEN,
    "intermediate_size": 24,
    "num_key_value_heads": 1,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, Any] = {
    "llama": lambda: hf.LlamaConfig(**_LLAMA),
    "mistral": lambda: hf.MistralConfig(**_LLAMA, sliding_window=4),
    "qwen2": lambda: hf.Qwen2Config(**_LLAMA),
    "qwen3": lambda: hf.Qwen3Config(**_LLAMA, head_dim=8),
    "gemma": lambda: hf.GemmaConfig(**_LLAMA, head_dim=8),
    "phi3": lambda: hf.Phi3Config(**_LLAMA),
    "granite": lambda: hf.GraniteConfig(**_LLAMA, residual_multiplier=0.5),
    "stablelm": lambda: hf.StableLmConfig(**_LLAMA),
    "starcoder2": lambda: hf.Starcoder2Config(**_LLAMA),
    "gpt2": lambda: hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=BLOCKS,
        n_head=2,
        n_positions=64,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "opt": lambda: hf.OPTConfig(**_HIDDEN, ffn_dim=24, init_std=0.4, word_embed_proj_dim=WIDTH),
    "gpt_neox": lambda: hf.GPTNeoXConfig(
        **_HIDDEN, intermediate_size=24, initializer_range=0.4, bos_token_id=1, eos_token_id=2
    ),
}


def build(family: str) -> Any:
    torch.manual_seed(3)
    return hf.AutoModelForCausalLM.from_config(CONFIGS[family]()).eval()


def some_ids(rows: int = 2, length: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(5, VOCABULARY, (rows, length)))


def logits(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=ids, use_cache=False, **options).logits
    return found


def hooked_logits(model: Any, ids: torch.Tensor, changes: dict[int, Any]) -> torch.Tensor:
    """The model's own forward pass, what leaves some blocks made from what entered them."""

    def hook(change: Any) -> Any:
        def replace(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            entered = args[0] if args else kwargs["hidden_states"]
            made = change(entered)
            return made if isinstance(output, torch.Tensor) else (made, *output[1:])

        return replace

    blocks = blocks_of(model)
    handles = [
        blocks[block].register_forward_hook(hook(change), with_kwargs=True)
        for block, change in changes.items()
    ]
    found = logits(model, ids)
    for handle in handles:
        handle.remove()
    return found


def greedy(model: Any, ids: torch.Tensor, new: int) -> torch.Tensor:
    """By whole passes, without a cache."""
    for _ in range(new):
        ids = torch.cat([ids, logits(model, ids)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids


def generated(model: Any, ids: torch.Tensor, new: int) -> torch.Tensor:
    model.generation_config.eos_token_id = None
    found: torch.Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
    )
    return found


def random_map(block: int, seed: int, bias: bool = True) -> actstore.LinearMap:
    rng = np.random.default_rng(seed)
    matrix = np.eye(WIDTH) + 0.1 * rng.normal(size=(WIDTH, WIDTH))
    shift = rng.normal(size=WIDTH) if bias else None
    return actstore.LinearMap(block, block + 1, matrix, shift, WIDTH, 1.0, "cholesky")


@pytest.mark.parametrize("family", CONFIGS)
def test_removed_blocks_are_gone_and_the_rest_is_an_ordinary_model(
    family: str, tmp_path: Path
) -> None:
    model = build(family)
    before, config = weights_fingerprint(model), model.config.to_dict()
    made = pruning.remove(model, [2, 0])
    ids = some_ids()
    expected = hooked_logits(model, ids, {0: lambda x: x, 2: lambda x: x})
    torch.testing.assert_close(logits(made, ids), expected)
    assert not torch.allclose(expected, logits(model, ids), atol=1e-2)
    assert type(made) is type(model)
    assert made.config.num_hidden_layers == len(blocks_of(made)) == 2

    made.save_pretrained(tmp_path)
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(back, ids), logits(made, ids))
    for one in (made, back):
        assert torch.equal(generated(one, ids, 6), greedy(one, ids, 6))
    known = actstore.load_model(tmp_path, tokenizer=False)
    assert known.n_blocks == 2

    assert weights_fingerprint(model) == before
    assert model.config.to_dict() == config
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    assert weights_fingerprint(model) == before


@pytest.mark.parametrize("family", CONFIGS)
def test_linear_blocks_take_part_in_everything(family: str, tmp_path: Path) -> None:
    model = build(family)
    before = weights_fingerprint(model)
    maps = {block: random_map(block, block, bias=block == 0) for block in (0, 2)}
    made = pruning.replace(model, maps)
    ids = some_ids()
    changes = {
        block: lambda x, one=one: (
            x @ torch.tensor(one.matrix, dtype=x.dtype)
            + (0 if one.bias is None else torch.tensor(one.bias, dtype=x.dtype))
        )
        for block, one in maps.items()
    }
    expected = hooked_logits(model, ids, changes)
    torch.testing.assert_close(logits(made, ids), expected, rtol=1e-4, atol=1e-4)
    assert sorted(pruning.linear_blocks(made)) == [0, 2]

    made.save_pretrained(tmp_path)
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(back, ids), logits(made, ids))
    with torch.inference_mode():
        states = back(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(states) == BLOCKS + 1
    torch.testing.assert_close(states[1], changes[0](states[0]))
    for one in (made, back):
        assert torch.equal(generated(one, ids, 6), greedy(one, ids, 6))
    known = actstore.load_model(tmp_path, tokenizer=False)
    assert known.n_blocks == BLOCKS
    assert "resid" in known.sites
    fewer = pruning.remove(back, [1])
    assert sorted(pruning.linear_blocks(fewer)) == [0, 1]
    torch.testing.assert_close(
        logits(fewer, ids),
        hooked_logits(model, ids, {**changes, 1: lambda x: x}),
        rtol=1e-4,
        atol=1e-4,
    )
    assert weights_fingerprint(model) == before


def test_transformers_alone_refuses_linear_blocks_and_takes_removed_ones(tmp_path: Path) -> None:
    model = build("llama")
    pruning.remove(model, [1]).save_pretrained(tmp_path / "removed")
    pruning.replace(model, {1: random_map(1, 0)}).save_pretrained(tmp_path / "replaced")
    code = (
        "import sys, transformers\n"
        "transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1] + '/removed')\n"
        "try:\n"
        "    transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1] + '/replaced')\n"
        "except ValueError as error:\n"
        "    print('linear_blocks_llama' in str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_refusals() -> None:
    model = build("llama")
    with pytest.raises(AnalysisError, match="block 4 asked for, but the model has blocks 0…3"):
        pruning.remove(model, [4])
    with pytest.raises(AnalysisError, match="named twice"):
        pruning.remove(model, [1, 1])
    with pytest.raises(AnalysisError, match="leaves no block that attends"):
        pruning.remove(model, range(4))
    with pytest.raises(AnalysisError, match="all 4 blocks would be replaced"):
        pruning.replace(model, {block: random_map(block, 0) for block in range(4)})
    narrow = actstore.LinearMap(0, 1, np.eye(5), None, 5, 1.0, "cholesky")
    with pytest.raises(AnalysisError, match="the stream has 16 features"):
        pruning.replace(model, {0: narrow})
    linear = pruning.replace(model, {0: random_map(0, 0)})
    with pytest.raises(AnalysisError, match="are linear already"):
        pruning.replace(linear, {1: random_map(1, 0)})
    bloom = hf.BloomConfig(vocab_size=97, hidden_size=16, n_layer=2, n_head=2)
    with pytest.raises(ModelError, match="'bloom' cannot be removed or replaced"):
        pruning.remove(hf.AutoModelForCausalLM.from_config(bloom), [0])
    mixed = hf.Qwen2Config(**_LLAMA, use_sliding_window=True, sliding_window=4, max_window_layers=2)
    with pytest.raises(ModelError, match="mixes blocks of full_attention and sliding_attention"):
        pruning.remove(hf.AutoModelForCausalLM.from_config(mixed), [0])
    scaled = hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ModelError, match="scale_attn_by_inverse_layer_idx"):
        pruning.remove(hf.AutoModelForCausalLM.from_config(scaled), [0])


def documents(count: int = 12, seed: int = 0) -> list[actstore.Document]:
    rng = np.random.default_rng(seed)
    return [
        actstore.Document(input_ids=rng.integers(5, VOCABULARY, n).tolist())
        for n in rng.integers(8, 16, count)
    ]


def streams(model: Any, corpus: list[actstore.Document]) -> list[np.ndarray]:
    """Layers 0…L at all positions of all documents, by transformers alone, (rows, width)."""
    blocks = blocks_of(model)
    layers: list[torch.Tensor] = []
    handles = [
        blocks[0].register_forward_pre_hook(
            lambda _, args, kwargs: layers.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
    ]
    for block in blocks:
        handles.append(
            block.register_forward_hook(
                lambda _, args, out: layers.append(out if torch.is_tensor(out) else out[0])
            )
        )
    for document in corpus:
        logits(model, torch.tensor([document.input_ids]))
    for handle in handles:
        handle.remove()
    depth = len(blocks) + 1
    return [
        np.concatenate([states[0].double().numpy() for states in layers[layer::depth]])
        for layer in range(depth)
    ]


def linearity(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    return 1 - float(np.linalg.norm(x @ np.linalg.lstsq(x, y, rcond=None)[0] - y) ** 2)


def influence(x: np.ndarray, y: np.ndarray) -> float:
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(x, y, strict=True)]
    return 1 - float(np.mean(cosines))


@pytest.mark.parametrize("by", ["linearity", "block_influence"])
def test_rescored_ranking_scores_the_pruned_model(by: str, tmp_path: Path) -> None:
    corpus, plain = documents(), build("gpt2")
    model = actstore.load_model(plain, tokenizer=False, name="gpt2")
    run = pruning.states(model, corpus, tmp_path / "s.zarr", bos="none", progress=False)
    once = pruning.rank_blocks(run, by=by, progress=False)
    again = pruning.rank_blocks(run, by=by, rescored=True, model=model, progress=False)
    score, sign = (linearity, -1) if by == "linearity" else (influence, 1)
    layers = streams(plain, corpus)
    first = [score(layers[b], layers[b + 1]) for b in range(BLOCKS)]
    np.testing.assert_allclose(once.scores, [first], rtol=1e-4)
    assert once.order == np.argsort(sign * np.array(first), kind="stable").tolist()[:-1]
    left, order = list(range(BLOCKS)), []
    for row in again.scores:
        pruned = streams(pruning.remove(plain, order), corpus)
        expected = [score(pruned[n], pruned[n + 1]) for n in range(len(left))]
        np.testing.assert_allclose(row[left], expected, rtol=1e-4)
        assert np.isnan(row[order]).all()
        order.append(left.pop(int(np.argmin(sign * np.array(expected)))))
    assert again.order == order
    assert len(order) == BLOCKS - 1


@pytest.mark.parametrize("first_token", ["keep", "drop"])
@pytest.mark.parametrize("intercept", [True, False])
def test_maps_are_least_squares_at_all_positions(
    first_token: str, intercept: bool, tmp_path: Path
) -> None:
    corpus, plain = documents(), build("llama")
    model = actstore.load_model(plain, tokenizer=False, name="llama")
    run = pruning.states(model, corpus, tmp_path / "s.zarr", bos="none", progress=False)
    maps = pruning.fit_maps(run, [2], intercept=intercept, first_token=first_token, progress=False)
    layers = streams(plain, corpus)
    place = np.concatenate([np.arange(len(d.input_ids or ())) for d in corpus])
    kept = place >= (1 if first_token == "drop" else 0)
    x, y = layers[2][kept], layers[3][kept]
    if intercept:
        x = np.column_stack([x, np.ones(len(x))])
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(maps[2].matrix, expected[:WIDTH], rtol=1e-3, atol=1e-4)
    if intercept:
        np.testing.assert_allclose(maps[2].bias, expected[WIDTH], rtol=1e-3, atol=1e-4)
    else:
        assert maps[2].bias is None


def test_some_positions_are_not_enough(tmp_path: Path) -> None:
    model = actstore.load_model(build("llama"), tokenizer=False, name="llama")
    run = actstore.extract(
        model, documents(), tmp_path / "s.zarr", positions="random", bos="none", progress=False
    )
    with pytest.raises(AnalysisError, match="'random' positions"):
        pruning.fit_maps(run)
    with pytest.raises(AnalysisError, match="states at all positions"):
        pruning.rank_blocks(run)
    every = pruning.states(model, documents(), tmp_path / "t.zarr", bos="none", progress=False)
    with pytest.raises(AnalysisError, match="by='size'"):
        pruning.rank_blocks(every, by="size")
    with pytest.raises(AnalysisError, match="give model="):
        pruning.rank_blocks(every, rescored=True, progress=False)
    with pytest.raises(AnalysisError, match=r"0…3 can be taken out"):
        pruning.rank_blocks(every, count=4)


@pytest.mark.real
def test_a_real_model_does_without_one_of_its_most_linear_blocks(
    real_model_folder: Path, wikipedia_path: Path
) -> None:
    text = " ".join(d.text or "" for d in actstore.read_corpus(wikipedia_path, limit=8))
    model = actstore.load_model(real_model_folder, name="smollm2")
    made = pruning.remove(model, [14])
    options: dict[str, Any] = {"context": 256, "bos": "<|endoftext|>", "progress": False}
    whole = perplexity.perplexity(model, [text], **options)
    known = actstore.load_model(made, tokenizer=model.tokenizer, name="smaller")
    fewer = perplexity.perplexity(known, [text], **options)
    assert 1 < float(fewer.perplexity / whole.perplexity) < 1.5
    ids = torch.tensor([model.tokenizer("<|endoftext|>The capital of France is")["input_ids"]])
    assert torch.equal(generated(made, ids, 5), greedy(made, ids, 5))
