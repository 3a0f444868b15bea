"""Random models whose sub-modules matter, and plain loops over transformers' own modules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

import actstore
from analysis import submodules

BLOCKS, WIDTH = 4, 16
TEXTS = [
    f"The {a} {b} that runs through {c} is {d}."
    for a in ("river", "city", "model", "whale")
    for b in ("of numbers", "in water")
    for c in ("the capital", "air")
    for d in ("Paris", "another row")
]


@dataclass
class Case:
    hf: Any  # the transformers model
    model: Any
    run: Any  # fitting samples
    held_out: Any
    maps: Any  # all pairs

    def ids(self, run: Any, sample: int) -> torch.Tensor:
        (ids,) = run.input_ids(run.samples.sequence.values[sample : sample + 1])
        return torch.tensor(ids)[None].long()

    def position(self, run: Any, sample: int) -> int:
        return int(run.samples.position[sample])


def build(family: str, vocabulary: int) -> Any:
    torch.manual_seed(1)
    common = {
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    if family == "gpt2":
        config: Any = hf.GPT2Config(
            vocab_size=vocabulary,
            n_embd=WIDTH,
            n_layer=BLOCKS,
            n_head=2,
            n_positions=64,
            initializer_range=0.4,
        )
        model: Any = hf.GPT2LMHeadModel(config)
    elif family == "opt":
        config = hf.OPTConfig(**common, ffn_dim=32, init_std=0.4, word_embed_proj_dim=WIDTH)
        model = hf.OPTForCausalLM(config)
    elif family == "llama":
        config = hf.LlamaConfig(
            **common, intermediate_size=24, num_key_value_heads=1, initializer_range=0.4
        )
        model = hf.LlamaForCausalLM(config)
    else:
        config = hf.BertConfig(**common, intermediate_size=24, initializer_range=0.4)
        model = hf.BertForMaskedLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name.lower() or "ln_" in name:  # so that norms are more than a scale
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


def make_case(family: str, tokenizer: Any, folder: Path) -> Case:
    model = build(family, len(tokenizer))
    known = actstore.load_model(model, tokenizer=tokenizer, name=family)
    masked = family == "bert"
    sampling = {"positions": "mask"} if masked else {"per_document": 2}
    run = actstore.extract(
        known,
        [text.lower() for text in TEXTS] if masked else TEXTS,
        folder / "s.zarr",
        sites=("resid",) if masked else submodules.SITES,
        corpus_name="text",
        progress=False,
        **sampling,
    )
    fitting, held_out = run.split(0.3, by="document", seed=1)
    return Case(model, known, fitting, held_out, actstore.fit(fitting, ridge=1e-2))


def layers_of(case: Case, ids: torch.Tensor) -> list[torch.Tensor]:
    """The stream 0…L of one sequence, by hooks on transformers' blocks."""
    blocks = list(case.model.blocks)
    seen: list[torch.Tensor] = []
    handles = [
        blocks[0].register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
    ]
    for block in blocks:
        handles.append(
            block.register_forward_hook(
                lambda _, args, out: seen.append(out if isinstance(out, torch.Tensor) else out[0])
            )
        )
    with torch.inference_mode():
        case.hf(input_ids=ids)
    for handle in handles:
        handle.remove()
    return [states[0] for states in seen]


def plain_block(case: Case, block: int, x: torch.Tensor) -> torch.Tensor:
    """One block of transformers on (time, width) states of one whole sequence."""
    module, extra = case.model.blocks[block], {}
    if isinstance(case.hf, hf.LlamaForCausalLM):
        extra["position_embeddings"] = rotary(case, x)
    with torch.inference_mode():
        out = module(x[None], attention_mask=None, **extra)
    return (out if isinstance(out, torch.Tensor) else out[0])[0]


def rotary(case: Case, x: torch.Tensor) -> Any:
    return case.hf.model.rotary_emb(x[None], torch.arange(len(x))[None])


def plain_parts(case: Case, block: int) -> tuple[Any, Any, Any, Any]:
    """ln1, attention, ln2, feed-forward of a block, as functions of (time, width)."""
    module = case.model.blocks[block]
    if isinstance(case.hf, hf.GPT2LMHeadModel):
        return (
            module.ln_1,
            lambda a: module.attn(a[None], attention_mask=None)[0][0],
            module.ln_2,
            module.mlp,
        )
    if isinstance(case.hf, hf.OPTForCausalLM):
        return (
            module.self_attn_layer_norm,
            lambda a: module.self_attn(a[None], attention_mask=None)[0][0],
            module.final_layer_norm,
            lambda e: module.fc2(module.activation_fn(module.fc1(e))),
        )
    return (
        module.input_layernorm,
        lambda a: module.self_attn(a[None], rotary(case, a), attention_mask=None)[0][0],
        module.post_attention_layernorm,
        module.mlp,
    )


def plain_logits(case: Case, state: torch.Tensor) -> torch.Tensor:
    """Logits of one layer-L state, (vocabulary,), by the model's own norm and head."""
    model = case.hf
    with torch.inference_mode():
        if isinstance(model, hf.BertForMaskedLM):
            return model.cls(state[None])[0].double()
        base = {
            hf.GPT2LMHeadModel: lambda: model.transformer.ln_f,
            hf.OPTForCausalLM: lambda: model.model.decoder.final_layer_norm,
            hf.LlamaForCausalLM: lambda: model.model.norm,
        }[type(model)]()
        return model.lm_head(base(state[None]))[0].double()


def plain_scores(original: torch.Tensor, changed: torch.Tensor) -> tuple[int, float]:
    """Rank and surprisal of what `changed` logits say under the `original` ones."""
    token = int(changed.argmax())
    rank = int((original > original[token] + 1e-6).sum())
    return rank, -float(original.log_softmax(-1)[token])


def matrix(linear: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(linear.matrix), dtype=torch.float32)
