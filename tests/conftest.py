"""Small tokenizers built in code, and the real assets where they were fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_tokenizers import TEXT, byte_level
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from examples import assets


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """Like GPT-2's: 320 tokens, one special token in all roles, none added to a text."""
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level([end]), bos_token=end, eos_token=end, unk_token=end
    )


@pytest.fixture(scope="session")
def bos_tokenizer() -> Any:
    """Like Llama's: ``<s>`` (id 1) is put before every text."""
    tokenizer = byte_level(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="session")
def bert_tokenizer() -> Any:
    """Like BERT's: whole words, ``[CLS]`` (2) before and ``[SEP]`` (3) after, mask and padding."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({word for text in TEXT for word in text.lower().replace(",", " ,").split()})
    ids = {word: number for number, word in enumerate([*specials, *words, "##s", "##ing"])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def _real(name: str) -> Path:
    if not assets.available(name):
        pytest.skip(f"{name} is not in {assets.path_of(name).parent}; python -m examples.assets")
    return assets.path_of(name)


@pytest.fixture(scope="session")
def real_model_folder() -> Path:
    """The folder of SmolLM2-135M; skips where it was not fetched."""
    return _real("smollm2")


@pytest.fixture(scope="session")
def wikipedia_path() -> Path:
    """The Wikipedia sentences (JSON lines); skips where they were not fetched."""
    return _real("wikipedia")


@pytest.fixture(scope="session")
def news_path() -> Path:
    """The news sentences (JSON lines); skips where they were not fetched."""
    return _real("news")


def _tiny(config: Any, kind: Any) -> Any:
    torch.manual_seed(0)
    return kind(config).eval()


@pytest.fixture
def tiny_gpt2() -> Any:
    """3 blocks × 32, random weights, with the vocabulary of `tiny_tokenizer`."""
    config = GPT2Config(vocab_size=320, n_positions=64, n_embd=32, n_layer=3, n_head=4)
    return _tiny(config, GPT2LMHeadModel)


@pytest.fixture
def tiny_llama() -> Any:
    """3 blocks × 32, random weights, with the vocabulary of `tiny_tokenizer`."""
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return _tiny(config, LlamaForCausalLM)


@pytest.fixture
def tiny_bert(bert_tokenizer: Any) -> Any:
    """3 blocks × 32, random weights, with the vocabulary of `bert_tokenizer`."""
    config = BertConfig(
        vocab_size=len(bert_tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    return _tiny(config, BertForMaskedLM)
