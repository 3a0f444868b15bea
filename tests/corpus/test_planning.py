"""The plan of a run: rows, their labels, and independence of batches."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.corpus import Corpus, Document, PlanBlock, Sampling, plan, planning, read_corpus
from actstore.errors import CorpusError, SamplingError

DOCUMENTS = [
    Document("the capital of france is paris", metadata={"genre": "fact", "year": 1905}),
    Document(""),
    Document("fish breathe water", id="fish", metadata={"genre": "odd", "year": 2000}),
]


def rows(blocks: list[PlanBlock]) -> list[tuple[Any, ...]]:
    """Every sample with the ids of its sequence and all its labels."""
    out: list[tuple[Any, ...]] = []
    for block in blocks:
        keys = sorted(block.metadata)
        for row, sequence in enumerate(block.sample_sequence):
            assert block.sequence_document[sequence] == block.document[row]
            labels = [str(block.metadata[key][row]) for key in keys]
            numbers = (block.document[row], block.position[row], block.token_id[row])
            ids = block.input_ids[sequence].tolist()
            out.append((*map(int, numbers), int(block.target_id[row]), labels, ids))
    return out


def test_rows_carry_tokens_targets_and_labels(bert_tokenizer: Any) -> None:
    (block,) = plan(read_corpus(DOCUMENTS), bert_tokenizer, Sampling("all"))
    assert [ids.dtype for ids in block.input_ids] == [np.int32, np.int32]
    first, second = (ids.tolist() for ids in block.input_ids)
    assert block.sequence_document.tolist() == [0, 2]
    assert block.sample_sequence.tolist() == [0] * 6 + [1] * 3
    assert block.position.tolist() == [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert block.token_id.tolist() == first[1:7] + second[1:4]
    assert block.target_id.tolist() == first[2:8] + second[2:5]
    assert block.document.tolist() == [0] * 6 + [2] * 3
    assert block.metadata["document_id"].tolist() == ["0"] * 6 + ["fish"] * 3
    assert block.metadata["genre"].tolist() == ["fact"] * 6 + ["odd"] * 3
    assert block.metadata["year"].dtype == np.float64
    assert block.skipped == 1
    assert block.truncated == 0
    dtypes = {name: getattr(block, name).dtype for name in ("position", "token_id", "target_id")}
    assert set(dtypes.values()) == {np.dtype(np.int32)}
    for name in ("document", "sample_sequence", "sequence_document"):
        assert getattr(block, name).dtype == np.int64


def test_the_last_token_has_no_target(tiny_tokenizer: Any) -> None:
    (block,) = plan(read_corpus(["The river"]), tiny_tokenizer, Sampling("last"))
    assert block.position.tolist() == [len(block.input_ids[0]) - 1]
    assert block.target_id.tolist() == [-1]


def test_mask_hides_each_drawn_token_in_a_sequence_of_its_own(bert_tokenizer: Any) -> None:
    corpus = read_corpus(DOCUMENTS)
    drawn = Sampling("random", per_document=2, seed=3)
    masked = Sampling("mask", per_document=2, seed=3)
    (plain,) = plan(corpus, bert_tokenizer, drawn)
    (block,) = plan(corpus, bert_tokenizer, masked)
    assert masked.masks
    assert block.position.tolist() == plain.position.tolist()
    assert block.sample_sequence.tolist() == [0, 1, 2, 3]
    assert block.sequence_document.tolist() == [0, 0, 2, 2]
    assert block.token_id.tolist() == [4] * 4
    assert block.target_id.tolist() == plain.token_id.tolist()
    for row, ids in enumerate(block.input_ids):
        original = plain.input_ids[plain.sample_sequence[row]]
        assert np.flatnonzero(ids != original).tolist() == [block.position[row]]


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any),
    batch_size=st.integers(1, 5),
    positions=st.sampled_from(["random", "all", "last", "every:2", "mask"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_batches_do_not_change_the_plan(
    bert_tokenizer: Any, lengths: list[int], batch_size: int, positions: str, seed: int
) -> None:
    corpus = read_corpus(
        [Document("the river " * n, metadata={"n": n}) for n in lengths], name="rivers"
    )
    sampling = Sampling(positions, seed=seed, max_length=15)
    whole = list(plan(corpus, bert_tokenizer, sampling))
    parts = list(plan(corpus, bert_tokenizer, sampling, batch_size=batch_size))
    assert rows(parts) == rows(whole)
    assert sum(b.skipped for b in parts) == sum(b.skipped for b in whole) == lengths.count(0)
    assert sum(b.truncated for b in parts) == sum(n * 2 + 2 > 15 for n in lengths)


def test_adding_documents_keeps_the_rows_of_the_others(tiny_tokenizer: Any) -> None:
    texts = [f"Whale number {i} breathes air." for i in range(30)]
    short = rows(list(plan(read_corpus(texts[:20]), tiny_tokenizer, Sampling(seed=4))))
    long = rows(list(plan(read_corpus(texts), tiny_tokenizer, Sampling(seed=4))))
    other = rows(list(plan(read_corpus(texts), tiny_tokenizer, Sampling(seed=5))))
    assert long[:20] == short
    assert [row[1] for row in long] != [row[1] for row in other]


def test_a_beginning_token_does_not_change_which_tokens_are_drawn(tiny_tokenizer: Any) -> None:
    corpus = read_corpus([f"Whale number {i} breathes air." for i in range(30)])
    (bare,) = plan(corpus, tiny_tokenizer, Sampling(bos="none"))
    (front,) = plan(corpus, tiny_tokenizer, Sampling(bos="<|endoftext|>"))
    assert (front.position - 1).tolist() == bare.position.tolist()
    assert front.token_id.tolist() == bare.token_id.tolist()


def test_what_cannot_be_planned_is_refused(tiny_tokenizer: Any, bert_tokenizer: Any) -> None:
    corpus = read_corpus(["", ""], name="blank")
    with pytest.raises(SamplingError, match="no token of corpus 'blank' can be sampled: all 2"):
        list(plan(corpus, bert_tokenizer, Sampling()))
    with pytest.raises(SamplingError, match="needs a tokenizer with a mask token"):
        plan(corpus, tiny_tokenizer, Sampling("mask"))
    with pytest.raises(SamplingError, match="batch_size=0"):
        plan(corpus, tiny_tokenizer, Sampling(), batch_size=0)


def test_a_corpus_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, tiny_tokenizer: Any
) -> None:
    path = tmp_path / "log.txt"
    path.write_text("one line\n")
    corpus = read_corpus(path)
    corpus.fingerprint()
    path.write_text("one line\nand another\n")
    with pytest.raises(CorpusError, match=r"'log' changed .* \(1 document before, 2 now"):
        list(plan(corpus, tiny_tokenizer, Sampling()))


def test_memory_does_not_grow_with_the_corpus(tiny_tokenizer: Any) -> None:
    text = "The river runs through the city."

    def peak(n: int) -> int:
        def documents() -> Iterator[Document]:
            return (Document(text, metadata={"i": i}) for i in range(n))

        corpus = Corpus("long", documents)
        tracemalloc.start()
        try:
            total = sum(
                len(block.position)
                for block in plan(corpus, tiny_tokenizer, Sampling(), batch_size=64)
            )
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert total == n

    small = peak(300)
    assert peak(4800) < 1.2 * small + 100_000


def test_long_documents_make_small_blocks(
    tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_MAX_CHARACTERS", 100)
    documents = [Document("x " * 60), Document("y"), Document(input_ids=[9] * 40), Document("z")]
    blocks = list(plan(read_corpus(documents), tiny_tokenizer, Sampling("last")))
    assert [block.document.tolist() for block in blocks] == [[0], [1, 2], [3]]


@pytest.mark.real
def test_the_plan_of_real_sentences(real_model_folder: Path, wikipedia_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_model_folder)
    corpus = read_corpus(wikipedia_path, name="wiki", limit=3000)
    blocks = list(plan(corpus, tokenizer, Sampling(bos="<|endoftext|>")))
    assert sum(len(block.position) for block in blocks) == 3000
    assert all(ids[0] == 0 and 1 <= p < len(ids) for ids, p in _sampled(blocks))
    lengths = np.array([len(ids) - 1 for ids, _ in _sampled(blocks)])
    relative = np.array([p - 0.5 for _, p in _sampled(blocks)]) / lengths
    # uniform over a sentence: mean 1/2, standard error 0.289 / sqrt(3000)
    assert abs(relative.mean() - 0.5) < 4 * 0.289 / 3000**0.5
    assert "article" in blocks[0].metadata


def _sampled(blocks: list[PlanBlock]) -> list[tuple[np.ndarray, int]]:
    return [
        (block.input_ids[sequence], int(position))
        for block in blocks
        for sequence, position in zip(block.sample_sequence, block.position, strict=True)
    ]
