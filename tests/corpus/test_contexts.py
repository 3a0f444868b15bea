"""Long documents in windows, and sequences that end with their sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.corpus import Document, PlanBlock, Sampling, plan, read_corpus, token_strings
from actstore.errors import SamplingError

LONG = "the capital of france is paris and the river is the seine"  # 12 words


def planned(corpus: Any, tokenizer: Any, **choices: Any) -> PlanBlock:
    (block,) = plan(read_corpus(corpus), tokenizer, Sampling(**choices))
    return block


def test_windows_start_a_stride_apart_and_keep_their_special_tokens(bert_tokenizer: Any) -> None:
    choice = {"max_length": 6, "overflow": "window", "stride": 2, "positions": "all"}
    block = planned([LONG], bert_tokenizer, **choice)
    whole = np.array(bert_tokenizer(LONG)["input_ids"])
    text = whole[1:-1]
    assert len(text) == 12
    for number, ids in enumerate(block.input_ids):
        assert ids.tolist() == [2, *text[2 * number : 2 * number + 4], 3]
    assert len(block.input_ids) == 5
    # the first window gives all of its tokens, each other one what is new in it
    assert np.bincount(block.sample_sequence).tolist() == [4, 2, 2, 2, 2]
    assert block.position.tolist() == [1, 2, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4]
    assert block.metadata["document_position"].tolist() == list(range(1, 13))
    assert block.token_id.tolist() == text.tolist()
    assert block.target_id.tolist() == whole[2:].tolist()
    assert block.sequence_document.tolist() == [0] * 5
    assert (block.truncated, block.skipped) == (0, 0)


@given(
    n=st.integers(1, 40),
    length=st.integers(3, 12),
    stride=st.integers(1, 10) | st.none(),
    include=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_each_token_is_taken_once_from_the_window_with_most_before_it(
    bert_tokenizer: Any, n: int, length: int, stride: int | None, include: bool
) -> None:
    room = length - 2
    stride = stride if stride is None else min(stride, room)
    text = " ".join((["the", "river", "is"] * 14)[:n])
    block = planned(
        [text],
        bert_tokenizer,
        positions="all",
        max_length=length,
        overflow="window",
        stride=stride,
        include_special=include,
    )
    whole = np.array(bert_tokenizer(text)["input_ids"])
    step = max(1, room // 2) if stride is None else stride
    starts = [0]
    while starts[-1] + room < len(whole) - 2:
        starts.append(starts[-1] + step)
    expected = np.arange(len(whole)) if include else np.arange(1, len(whole) - 1)
    place = block.metadata["document_position"]
    assert place.tolist() == expected.tolist()
    for row, (at, there) in enumerate(zip(block.position, place, strict=True)):
        ids = block.input_ids[block.sample_sequence[row]]
        assert len(ids) <= length
        assert ids[at] == whole[there] == block.token_id[row]
        after = whole[there + 1] if there + 1 < len(whole) else -1
        assert block.target_id[row] == after
        if 0 < there < len(whole) - 1:
            most = max(there - 1 - start for start in starts if start <= there - 1 < start + room)
            assert at - 1 == most


def test_the_same_positions_are_drawn_with_windows_and_without(bert_tokenizer: Any) -> None:
    texts = [f"{LONG} {LONG}"[: 20 + 9 * i] for i in range(8)]
    whole = planned(texts, bert_tokenizer, per_document=3)
    cut = planned(texts, bert_tokenizer, per_document=3, max_length=5, overflow="window")
    assert cut.metadata["document_position"].tolist() == whole.position.tolist()
    assert cut.token_id.tolist() == whole.token_id.tolist()
    assert cut.target_id.tolist() == whole.target_id.tolist()
    assert max(map(len, cut.input_ids)) == 5


def test_windows_of_ids_and_of_masked_tokens(bert_tokenizer: Any) -> None:
    ids = list(range(5, 15))
    block = planned(
        [Document(input_ids=ids)], None, positions="last", max_length=4, overflow="window"
    )
    assert [one.tolist() for one in block.input_ids] == [[11, 12, 13, 14]]
    assert block.metadata["document_position"].tolist() == [9]
    masked = planned(
        [LONG], bert_tokenizer, positions="mask", per_document=4, max_length=6, overflow="window"
    )
    for ids_run, at, target, there in zip(
        masked.input_ids,
        masked.position,
        masked.target_id,
        masked.metadata["document_position"],
        strict=True,
    ):
        assert ids_run[at] == bert_tokenizer.mask_token_id
        assert target == bert_tokenizer(LONG)["input_ids"][there]


def test_a_stride_that_would_skip_text_is_refused(bert_tokenizer: Any) -> None:
    with pytest.raises(SamplingError, match=r"more than the 4 tokens of text .* use at most 4"):
        planned([LONG], bert_tokenizer, max_length=6, overflow="window", stride=5)
    with pytest.raises(SamplingError, match="leaves no room for text"):
        planned([LONG], bert_tokenizer, max_length=2, overflow="window")


def test_a_prefix_ends_with_its_sample(bert_tokenizer: Any) -> None:
    whole = planned([LONG], bert_tokenizer, per_document=3, seed=1)
    cut = planned([LONG], bert_tokenizer, per_document=3, seed=1, context="prefix")
    assert cut.sample_sequence.tolist() == [0, 1, 2]
    assert cut.position.tolist() == whole.position.tolist()
    assert cut.token_id.tolist() == whole.token_id.tolist()
    assert cut.target_id.tolist() == whole.target_id.tolist()
    for ids, at in zip(cut.input_ids, cut.position, strict=True):
        assert ids.tolist() == whole.input_ids[0][: at + 1].tolist()
    masked = planned([LONG], bert_tokenizer, positions="mask", seed=1, context="prefix")
    assert masked.input_ids[0][-1] == bert_tokenizer.mask_token_id
    assert masked.target_id.tolist() == [whole.input_ids[0][masked.position[0]]]


def test_ids_need_no_tokenizer() -> None:
    block = planned([Document(input_ids=[7, 8, 9]), Document(input_ids=[4])], None, positions="all")
    assert block.token_id.tolist() == [7, 8, 9, 4]
    assert token_strings(None, block.token_id).tolist() == ["<id 7>", "<id 8>", "<id 9>", "<id 4>"]
    with pytest.raises(SamplingError, match="is text, but there is no tokenizer"):
        planned(["text"], None)
