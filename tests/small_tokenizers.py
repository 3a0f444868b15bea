"""A byte-level tokenizer trained in a moment, for tests."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
