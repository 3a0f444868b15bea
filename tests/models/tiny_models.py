"""Random-weight models of every supported family, small enough to run in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers as hf

VOCABULARY = 97

_HIDDEN: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    # far larger than a real model's, so that attention and norms matter in a random model
    "initializer_range": 0.3,
}
_LLAMA = {
    **_HIDDEN,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    **_LLAMA,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MARKS = {"bos_token_id": 1, "eos_token_id": 2}
_OPT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 48,
    "max_position_embeddings": 64,
    "init_std": 0.3,
}
_MODERN = {**_HIDDEN, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, **_MARKS}


def _causal(config: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: hf.AutoModelForCausalLM.from_config(config(**options))


def _masked(config: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: hf.AutoModelForMaskedLM.from_config(config(**options))


STREAM = {"resid", "final_norm", "embed"}
PARALLEL = STREAM | {"ln1", "attn", "mlp"}
ALL = PARALLEL | {"resid_mid", "ln2"}
RAW = {"attn.out", "mlp.out"}
NORM_AFTER = ALL - {"ln1", "ln2"} | RAW
POST_NORM = STREAM | RAW | {"mlp.in"}

#: name → (how to build it, whether it is causal, whether it has a head, its sites)
FAMILIES: dict[str, tuple[Callable[[], Any], bool, bool, set[str]]] = {
    "gpt2": (_causal(hf.GPT2Config, **_GPT), True, True, ALL),
    "gpt_neo": (
        _causal(
            hf.GPTNeoConfig,
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_layers=4,
            attention_types=[[["global", "local"], 2]],
            num_heads=4,
            max_position_embeddings=64,
            initializer_range=0.3,
            window_size=4,
            **_MARKS,
        ),
        True,
        True,
        ALL,
    ),
    "gptj": (_causal(hf.GPTJConfig, **_GPT, rotary_dim=4), True, True, PARALLEL),
    "gpt_neox": (_causal(hf.GPTNeoXConfig, **_HIDDEN, **_MARKS), True, True, PARALLEL | {"ln2"}),
    "gpt_neox_sequential": (
        _causal(hf.GPTNeoXConfig, **_HIDDEN, **_MARKS, use_parallel_residual=False),
        True,
        True,
        ALL,
    ),
    "llama": (_causal(hf.LlamaConfig, **_LLAMA), True, True, ALL),
    "mistral": (_causal(hf.MistralConfig, **_LLAMA, sliding_window=4), True, True, ALL),
    "mixtral": (_causal(hf.MixtralConfig, **_LLAMA, num_local_experts=4), True, True, ALL),
    "qwen2": (_causal(hf.Qwen2Config, **_LLAMA), True, True, ALL),
    "qwen3": (_causal(hf.Qwen3Config, **_LLAMA, head_dim=8), True, True, ALL),
    "gemma": (_causal(hf.GemmaConfig, **_LLAMA, head_dim=8), True, True, ALL),
    "gemma2": (
        _causal(hf.Gemma2Config, **_LLAMA, head_dim=8, sliding_window=4),
        True,
        True,
        ALL | RAW,
    ),
    "gemma3": (_causal(hf.Gemma3TextConfig, **_LLAMA, head_dim=8), True, True, ALL | RAW),
    "phi3": (_causal(hf.Phi3Config, **_LLAMA), True, True, ALL),
    "olmo2": (_causal(hf.Olmo2Config, **_LLAMA), True, True, NORM_AFTER),
    "granite": (
        _causal(
            hf.GraniteConfig,
            **_LLAMA,
            residual_multiplier=0.5,
            logits_scaling=3.0,
            embedding_multiplier=2.0,
        ),
        True,
        True,
        ALL | RAW,
    ),
    "cohere": (_causal(hf.CohereConfig, **_LLAMA), True, True, PARALLEL),
    "deepseek_v2": (
        _causal(hf.DeepseekV2Config, **_LATENT, q_lora_rank=None, topk_method="greedy"),
        True,
        True,
        ALL,
    ),
    "deepseek_v3": (_causal(hf.DeepseekV3Config, **_LATENT, q_lora_rank=16), True, True, ALL),
    "qwen2_moe": (
        _causal(hf.Qwen2MoeConfig, **_LLAMA, **_EXPERTS, shared_expert_intermediate_size=24),
        True,
        True,
        ALL,
    ),
    "qwen3_moe": (_causal(hf.Qwen3MoeConfig, **_LLAMA, **_EXPERTS, head_dim=8), True, True, ALL),
    "stablelm": (_causal(hf.StableLmConfig, **_LLAMA), True, True, ALL),
    "smollm3": (_causal(hf.SmolLM3Config, **_LLAMA), True, True, ALL),
    "phi": (_causal(hf.PhiConfig, **_LLAMA), True, True, PARALLEL),
    "gpt_oss": (
        _causal(
            hf.GptOssConfig,
            **_LLAMA,
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=4,
        ),
        True,
        True,
        ALL,
    ),
    "olmo3": (_causal(hf.Olmo3Config, **_LLAMA), True, True, NORM_AFTER),
    "starcoder2": (_causal(hf.Starcoder2Config, **_LLAMA), True, True, ALL),
    "opt": (_causal(hf.OPTConfig, **_OPT, word_embed_proj_dim=32), True, True, ALL),
    "opt_350m_shape": (
        _causal(hf.OPTConfig, **_OPT, word_embed_proj_dim=16, do_layer_norm_before=False),
        True,
        True,
        POST_NORM,
    ),
    "bloom": (
        _causal(
            hf.BloomConfig,
            vocab_size=VOCABULARY,
            hidden_size=32,
            n_layer=3,
            n_head=4,
            initializer_range=0.3,
            **_MARKS,
        ),
        True,
        True,
        ALL,
    ),
    "falcon": (_causal(hf.FalconConfig, **_HIDDEN, **_MARKS), True, True, PARALLEL),
    "falcon_new": (
        _causal(
            hf.FalconConfig, **_HIDDEN, **_MARKS, new_decoder_architecture=True, num_kv_heads=2
        ),
        True,
        True,
        PARALLEL | {"ln2"},
    ),
    "mpt": (
        _causal(
            hf.MptConfig,
            vocab_size=VOCABULARY,
            d_model=32,
            n_layers=3,
            n_heads=4,
            max_seq_len=64,
            initializer_range=0.3,
        ),
        True,
        True,
        ALL,
    ),
    "mamba": (
        _causal(
            hf.MambaConfig,
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=3,
            state_size=4,
            **_MARKS,
        ),
        True,
        True,
        STREAM,
    ),
    "mamba2": (
        _causal(
            hf.Mamba2Config,
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=3,
            state_size=4,
            num_heads=4,
            head_dim=16,
            n_groups=1,
            chunk_size=4,
            **_MARKS,
        ),
        True,
        True,
        STREAM,
    ),
    # attention in one block, a state-space model in the others
    "jamba": (
        _causal(
            hf.JambaConfig,
            **_LLAMA,
            num_experts=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=4,
            use_mamba_kernels=False,
        ),
        True,
        True,
        STREAM,
    ),
    "bert": (_masked(hf.BertConfig, **_HIDDEN), False, True, POST_NORM),
    "roberta": (_masked(hf.RobertaConfig, **_HIDDEN), False, True, POST_NORM),
    "distilbert": (
        _masked(
            hf.DistilBertConfig,
            vocab_size=VOCABULARY,
            dim=32,
            n_layers=3,
            n_heads=4,
            hidden_dim=48,
            max_position_embeddings=64,
            initializer_range=0.3,
        ),
        False,
        True,
        POST_NORM,
    ),
    "electra": (_masked(hf.ElectraConfig, **_HIDDEN, embedding_size=16), False, True, POST_NORM),
    "albert": (_masked(hf.AlbertConfig, **_HIDDEN, embedding_size=16), False, True, POST_NORM),
    "modernbert": (_masked(hf.ModernBertConfig, **_MODERN), False, True, ALL),
    "mpnet": (_masked(hf.MPNetConfig, **_HIDDEN), False, True, POST_NORM),
    "deberta_v2": (
        _masked(
            hf.DebertaV2Config, **_HIDDEN, relative_attention=True, pos_att_type=["p2c", "c2p"]
        ),
        False,
        True,
        POST_NORM,
    ),
    "t5_encoder": (
        lambda: hf.AutoModel.from_config(
            hf.T5Config(
                vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4
            )
        ),
        False,
        False,
        ALL,
    ),
    "bart_encoder": (
        lambda: hf.AutoModel.from_config(
            hf.BartConfig(
                vocab_size=VOCABULARY,
                d_model=32,
                encoder_layers=3,
                decoder_layers=3,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=48,
                decoder_ffn_dim=48,
                max_position_embeddings=64,
            )
        ),
        False,
        False,
        POST_NORM,
    ),
}


def tiny(family: str) -> Any:
    """A model of the family, in evaluation mode, with weights that any machine draws alike."""
    torch.manual_seed(0)
    model = FAMILIES[family][0]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:  # norms start out alike, and biases as zeros
                weight.add_(torch.randn_like(weight), alpha=0.1)
    return model


def sequences(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    """Random token ids without the special ones."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, VOCABULARY, n).astype(np.int32) for n in lengths]


def every_position(batch: list[np.ndarray]) -> list[np.ndarray]:
    """All positions of each sequence."""
    return [np.arange(len(ids)) for ids in batch]


def run_base(base: Any, ids: np.ndarray, **extra: Any) -> Any:
    """Run one sequence through transformers, without anything of ours."""
    with torch.inference_mode():
        return base(input_ids=torch.as_tensor(ids[None].astype(np.int64)), **extra)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Largest distance between rows, as a share of their norm."""
    return float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max())


def fingers(model: Any) -> tuple[Any, ...]:
    """Everything about a model that we must leave as it was: modes, hooks, attributes."""
    return tuple(
        (
            name,
            module.training,
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            "forward" in module.__dict__,
            "_output_capturing_hooks_installed" in module.__dict__,
        )
        for name, module in model.named_modules()
    )
