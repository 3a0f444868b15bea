"""Small tokenizers built in code, and the real assets where they were fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from examples import assets

TEXT = [
    "The capital of France is Paris, and the river that runs through the city is the Seine.",
    "A model reads the words one after another; each word becomes a row of numbers.",
    "In 1905 the young clerk wrote four papers that changed the way we think about light.",
    "Whales breathe air, but fish take what they need out of the water around them.",
]
"""What the small tokenizers were trained on."""


def byte_level(specials: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer of 320 tokens: every text can be written, and read back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


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
