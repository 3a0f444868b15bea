"""Special tokens, truncation, and the strings of single tokens."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from actstore.corpus import Document, special_ids, token_strings
from actstore.corpus.tokens import Encoder
from actstore.errors import CorpusError, SamplingError


def encode(
    tokenizer: Any, document: str | Document, bos: str, max_length: int | None = None
) -> Any:
    if isinstance(document, str):
        document = Document(document)
    (encoded,) = Encoder(tokenizer, bos, max_length).encode([document])
    return encoded


def test_the_tokenizers_own_specials_are_the_default(
    tiny_tokenizer: Any, bos_tokenizer: Any, bert_tokenizer: Any
) -> None:
    gpt = encode(tiny_tokenizer, "The river", "tokenizer")
    assert gpt.ids.tolist() == tiny_tokenizer("The river")["input_ids"]
    assert not gpt.special.any()
    llama = encode(bos_tokenizer, "The river", "tokenizer")
    assert llama.ids[0] == 1
    assert llama.special.tolist() == [True] + [False] * (len(llama.ids) - 1)
    bert = encode(bert_tokenizer, "the river", "tokenizer")
    assert bert.ids.tolist()[0::3] == [2, 3]
    assert bert.special.tolist() == [True, False, False, True]


def test_none_adds_nothing_and_a_named_token_goes_in_front_alone(
    tiny_tokenizer: Any, bert_tokenizer: Any
) -> None:
    bare = encode(bert_tokenizer, "the river", "none")
    assert len(bare.ids) == 2
    assert not bare.special.any()
    front = encode(bert_tokenizer, "the river", "[SEP]")
    assert front.ids.tolist() == [3, *bare.ids]
    assert front.special.tolist() == [True, False, False]
    word = encode(bert_tokenizer, "the river", "water")
    assert word.special.tolist() == [True, False, False]
    gpt = encode(tiny_tokenizer, "Hi", "<|endoftext|>")
    assert gpt.ids[0] == tiny_tokenizer.bos_token_id


def test_a_token_that_is_not_there_is_refused(tiny_tokenizer: Any) -> None:
    with pytest.raises(SamplingError, match=r"bos='<s>' asked for, .* '<\|endoftext\|>'"):
        Encoder(tiny_tokenizer, "<s>", None)
    with pytest.raises(SamplingError, match=r"bos='<s>' asked for"):
        Encoder(None, "<s>", None)


def test_unknown_words_are_text_and_roles_of_gpt2_are_special(
    tiny_tokenizer: Any, bert_tokenizer: Any
) -> None:
    encoded = encode(bert_tokenizer, "zebra river", "tokenizer")
    assert encoded.ids[1] == bert_tokenizer.unk_token_id
    assert encoded.special.tolist() == [True, False, False, True]
    assert special_ids(bert_tokenizer) == {0, 2, 3, 4}
    assert special_ids(tiny_tokenizer) == {tiny_tokenizer.eos_token_id}


@pytest.mark.parametrize("max_length", [3, 4, 6])
def test_truncation_cuts_the_end_and_keeps_the_specials(
    bert_tokenizer: Any, bos_tokenizer: Any, max_length: int
) -> None:
    text = "the capital of france is paris"
    whole, cut = (
        encode(bert_tokenizer, text, "tokenizer"),
        encode(bert_tokenizer, text, "tokenizer", max_length),
    )
    assert cut.ids.tolist() == [*whole.ids[: max_length - 1], 3]
    assert cut.truncated
    assert not whole.truncated
    assert not encode(bert_tokenizer, text, "tokenizer", len(whole.ids)).truncated
    whole, cut = (
        encode(bos_tokenizer, text, "tokenizer"),
        encode(bos_tokenizer, text, "tokenizer", max_length),
    )
    assert cut.ids.tolist() == whole.ids[:max_length].tolist()


def test_truncation_ignores_the_tokenizers_own_side_and_limit(tiny_tokenizer: Any) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer.backend_tokenizer,
        truncation_side="left",
        padding_side="left",
        model_max_length=4,
        pad_token="<|endoftext|>",
    )
    whole = encode(tiny_tokenizer, "The capital of France is Paris", "none")
    assert encode(tokenizer, "The capital of France is Paris", "none").ids.tolist() == list(
        whole.ids
    )
    cut = encode(tokenizer, "The capital of France is Paris", "none", 5)
    assert cut.ids.tolist() == whole.ids[:5].tolist()
    assert tokenizer.truncation_side == "left"


def test_a_limit_without_room_for_text_is_refused(bert_tokenizer: Any) -> None:
    with pytest.raises(SamplingError, match="max_length=1 leaves no room"):
        Encoder(bert_tokenizer, "tokenizer", 1)


def test_slow_tokenizers_work_and_their_closing_token_stays() -> None:
    tokenizer = ByT5Tokenizer()
    encoded = encode(tokenizer, "abc", "tokenizer")
    assert encoded.ids.tolist() == [100, 101, 102, 1]
    assert encoded.special.tolist() == [False, False, False, True]
    assert encode(tokenizer, "abc", "tokenizer", 3).ids.tolist() == [100, 101, 1]


def test_given_ids_are_run_as_they_are(bert_tokenizer: Any) -> None:
    encoded = encode(bert_tokenizer, Document(input_ids=[7, 3, 8]), "tokenizer")
    assert encoded.ids.tolist() == [7, 3, 8]
    assert encoded.special.tolist() == [False, True, False]
    assert encode(None, Document(input_ids=[7, 3]), "tokenizer").ids.tolist() == [7, 3]
    assert encode(None, Document("x", input_ids=[7, 3]), "none", 1).ids.tolist() == [7]
    with pytest.raises(CorpusError, match=r"document 0 has input id 9999, but .* 0…\d+$"):
        encode(bert_tokenizer, Document(input_ids=[9999]), "tokenizer")
    with pytest.raises(SamplingError, match="there is no tokenizer"):
        encode(None, Document("text"), "none")


def test_a_doubled_beginning_warns_once(bos_tokenizer: Any, bert_tokenizer: Any) -> None:
    documents = [Document("fine"), Document("<s>twice"), Document("<s>again")]
    with pytest.warns(UserWarning, match="document 1 starts with token 1 twice") as caught:
        Encoder(bos_tokenizer, "tokenizer", None).encode(documents)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="twice"):
        encode(bert_tokenizer, "[CLS] the river", "[CLS]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Encoder(bos_tokenizer, "none", None).encode(documents)


@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=6), limit=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_a_text_has_the_same_ids_alone_and_among_others(
    bos_tokenizer: Any, texts: list[str], limit: int
) -> None:
    documents = [Document(text) for text in texts]
    together = Encoder(bos_tokenizer, "none", limit).encode(documents)
    for document, encoded in zip(documents, together, strict=True):
        alone = encode(bos_tokenizer, document, "none")
        assert encoded.ids.tolist() == alone.ids.tolist()[:limit]
        assert encoded.truncated == (len(alone.ids) > limit)
        assert encoded.ids.dtype == np.int32


def test_token_strings_show_spaces_and_keep_parts_of_characters(tiny_tokenizer: Any) -> None:
    ids = tiny_tokenizer("the river é")["input_ids"]
    strings = token_strings(tiny_tokenizer, [*ids, -1, 0])
    assert strings.dtype == object
    assert "".join(strings[: len(ids) - 2]) == "the river "
    assert strings[len(ids) - 2 :].tolist() == ["Ã", "©", "", "<|endoftext|>"]
    assert token_strings(tiny_tokenizer, []).tolist() == []
    assert token_strings(tiny_tokenizer, [10**6]).tolist() == ["<id 1000000>"]


def test_token_strings_of_word_pieces_and_sentence_pieces(bert_tokenizer: Any) -> None:
    ids = bert_tokenizer.convert_tokens_to_ids(["river", "##s", "[MASK]"])
    assert token_strings(bert_tokenizer, ids).tolist() == ["river", "##s", "[MASK]"]
    pieces = [("<unk>", 0.0), ("\u2581the", -1.0), ("n", -2.0), ("<0xE2>", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    assert token_strings(wrapped, [1, 2, 3]).tolist() == [" the", "n", "<0xE2>"]
