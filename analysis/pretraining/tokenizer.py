"""A small tokenizer of the text's own."""

from __future__ import annotations

from typing import Any

from actstore.corpus import read_corpus
from actstore.errors import AnalysisError

END = "<|endoftext|>"


def train_tokenizer(documents: Any, size: int = 2048) -> Any:
    """Byte-level BPE (Sennrich et al. 2016, arXiv 1508.07909, on bytes as in GPT-2).

    Every text can be written and read back. One special token, ``<|endoftext|>`` with id 0,
    stands before a text where ``bos="<|endoftext|>"`` is asked for. The same text gives the same
    tokenizer.

    Parameters
    ----------
    documents : corpus
        As for `actstore.read_corpus`.
    size : int
        Tokens of the vocabulary, at least 257; fewer where the text has no more pairs to join.

    Returns
    -------
    transformers.PreTrainedTokenizerFast

    Raises
    ------
    AnalysisError
        A size that cannot hold all bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if size < 257:
        raise AnalysisError(f"size={size}; 256 bytes and {END} take 257 tokens")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (document.text for document in read_corpus(documents) if document.text is not None)
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=END, eos_token=END, pad_token=END, unk_token=END
    )
