"""Perplexity against one forward pass of transformers for every single token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rerun_models import TEXTS, build

import actstore
from actstore.errors import AnalysisError
from analysis import perplexity as measuring
from analysis import report, results, scored_windows, stats

LENGTHS = (23, 5, 1, 40)


def documents() -> list[actstore.Document]:
    text = " ".join(TEXTS)
    return [
        actstore.Document(text[7 * n : 7 * n + 3 * length], id=str(n), metadata={"half": n // 2})
        for n, length in enumerate(LENGTHS)
    ]


def surprisal(model: Any, history: list[int], token: int) -> float:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([history])).logits[0, -1].double()
    return -float(logits.log_softmax(-1)[token])


def plain_documents(
    model: Any, ids: list[int], prefix: list[int], context: int, stride: int
) -> Any:
    """(surprisals, tokens of context) of a text, each token from its own forward pass."""
    room = context - len(prefix)
    found, seen = [], []
    for at, token in enumerate(ids):
        start = 0
        while at >= start + room:
            start += stride
        history = prefix + ids[start:at]
        if history:
            found.append(surprisal(model, history, token))
            seen.append(len(history))
    return found, seen


@pytest.mark.parametrize(("family", "context", "stride"), [("llama", 12, 5), ("gpt2", 9, 8)])
def test_documents_equal_a_pass_per_token(
    family: str, context: int, stride: int, bos_tokenizer: Any
) -> None:
    plain = build(family, len(bos_tokenizer))
    model = actstore.load_model(plain, tokenizer=bos_tokenizer, name=family)
    got = measuring.perplexity(
        model, documents(), context=context, stride=stride, batch_tokens=30, progress=False
    )
    every, owner = [], []
    for number, document in enumerate(documents()):
        first, *text = bos_tokenizer(document.text)["input_ids"]
        found, seen = plain_documents(plain, text, [first], context, stride)
        assert len(found) == len(text)
        assert min(seen[context - 1 :], default=context) >= context - stride
        assert float(got.document_nll[number]) == pytest.approx(sum(found), rel=1e-4)
        assert int(got.document_tokens[number]) == len(text)
        every += found
        owner += [number] * len(found)
    expected = stats.mean(every, owner)
    for end, value in zip(("", "_low", "_high"), expected, strict=True):
        assert float(got["nll" + end]) == pytest.approx(float(value), rel=1e-4)
        assert float(got["perplexity" + end]) == pytest.approx(float(np.exp(value)), rel=1e-3)
    assert got.attrs["context"] == context
    assert got.attrs["stride"] == stride


def test_concatenated_runs_on_across_documents(bos_tokenizer: Any) -> None:
    plain = build("llama", len(bos_tokenizer))
    model = actstore.load_model(plain, tokenizer=bos_tokenizer, name="llama")
    got = measuring.perplexity(
        model, documents(), context=10, stride=4, boundaries="concatenated", progress=False
    )
    stream: list[tuple[int, int]] = []
    for number, document in enumerate(documents()):
        stream += [(token, number) for token in bos_tokenizer(document.text)["input_ids"]]
    sums = np.zeros(len(LENGTHS))
    for at, (token, owner) in enumerate(stream):
        start = 0
        while at >= start + 10:
            start += 4
        history = [one for one, _ in stream[start:at]]
        if history and token != bos_tokenizer.bos_token_id:
            sums[owner] += surprisal(plain, history, token)
    np.testing.assert_allclose(got.document_nll, sums, rtol=1e-4)


def test_ids_without_a_prefix_leave_the_first_token_out(tiny_gpt2: Any) -> None:
    model = actstore.load_model(tiny_gpt2, tokenizer=False)
    ids = np.random.default_rng(0).integers(5, 300, 20).tolist()
    got = measuring.perplexity(
        model, [actstore.Document(input_ids=ids)], context=8, stride=3, bos="none", progress=False
    )
    found, _ = plain_documents(tiny_gpt2, ids, [], 8, 3)
    assert got.document_tokens.values.tolist() == [19]
    assert got.document_nll.values == pytest.approx(sum(found), rel=1e-4)
    assert np.isnan(got.nll_low)  # one document says nothing about others


@given(
    length=st.integers(0, 60),
    prefix=st.integers(0, 3),
    context=st.integers(4, 20),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_every_token_is_scored_once_with_enough_before_it(
    length: int, prefix: int, context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context - max(prefix, 1)))
    text = np.arange(100, 100 + length, dtype=np.int32)
    before = np.arange(prefix, dtype=np.int32)
    windows = list(
        scored_windows.cut(before, text, text < 0, np.zeros(length, int), context, stride)
    )
    scored = [int(token) for one in windows for token in one.ids[one.scored]]
    assert scored == text[0 if prefix else 1 :].tolist()
    for number, one in enumerate(windows):
        assert len(one.ids) <= context
        assert one.ids[:prefix].tolist() == before.tolist()
        if number:
            assert one.scored.min() >= context - stride


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_ratio_is_the_mean_of_tokens(data: st.DataObject) -> None:
    counts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=8)))
    if (counts > 0).sum() == 0:
        counts[0] = 1
    clusters = np.array([data.draw(st.integers(0, 3)) for _ in counts])
    rng = np.random.default_rng(0)
    tokens = [rng.normal(3, 1, n) for n in counts]
    got = measuring.ratio([part.sum() for part in tokens], counts, clusters)
    expected = stats.mean(np.concatenate(tokens), np.repeat(clusters, counts))
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_comparison_is_paired_by_document(bos_tokenizer: Any) -> None:
    known = [
        actstore.load_model(build(family, len(bos_tokenizer)), tokenizer=bos_tokenizer, name=family)
        for family in ("llama", "gpt2")
    ]
    one, two = (
        measuring.perplexity(m, documents(), context=16, cluster="half", progress=False)
        for m in known
    )
    got = measuring.compare(one, two)
    apart = (two.document_nll - one.document_nll).values
    counts, half = one.document_tokens.values, np.array([0, 0, 1, 1])
    mean = apart.sum() / counts.sum()
    spread = np.array([(apart - mean * counts)[half == g].sum() for g in (0, 1)])
    error = np.sqrt(2 * (spread @ spread)) / counts.sum()
    assert float(got.nll_difference) == pytest.approx(mean)
    assert float(got.ratio) == pytest.approx(float(two.perplexity / one.perplexity))
    assert float(got.ratio_high) == pytest.approx(np.exp(mean + 12.7062047 * error))
    other = measuring.perplexity(known[1], documents(), context=8, progress=False)
    with pytest.raises(AnalysisError, match="context is 16 in one and 8 in the other"):
        measuring.compare(one, other)


def test_result_is_saved_and_reported(bos_tokenizer: Any, tmp_path: Any) -> None:
    model = actstore.load_model(build("llama", len(bos_tokenizer)), tokenizer=bos_tokenizer)
    got = measuring.perplexity(model, documents(), context=16, progress=False)
    back = results.load(results.save(got, tmp_path / "p.zarr"))
    page = report.build(tmp_path / "r.html", [back]).read_text()
    assert f"{float(got.perplexity):.2f}" in page


def test_refusals(bos_tokenizer: Any, tiny_bert: Any, tiny_gpt2: Any, tiny_tokenizer: Any) -> None:
    bert = actstore.load_model(tiny_bert, tokenizer=False, name="bert")
    with pytest.raises(AnalysisError, match="bert is not causal"):
        measuring.perplexity(bert, ["a"])
    model = actstore.load_model(tiny_gpt2, tokenizer=tiny_tokenizer, name="gpt2")
    with pytest.raises(AnalysisError, match="context=65 asked for, but gpt2 has 64 positions"):
        measuring.perplexity(model, ["a"], context=65)
    with pytest.raises(AnalysisError, match="1 ≤ stride ≤ context"):
        measuring.perplexity(model, ["a"], context=8, stride=9)
    with pytest.raises(AnalysisError, match="use a stride of at most 7"):
        measuring.perplexity(model, ["abc"], context=8, stride=8, bos="<|endoftext|>")
    with pytest.raises(AnalysisError, match="choose from"):
        measuring.perplexity(model, ["a"], context=8, boundaries="pages")
    with pytest.raises(AnalysisError, match="cluster='article'"):
        measuring.perplexity(model, ["a"], context=8, cluster="article")
    with pytest.raises(AnalysisError, match="no token to score"):
        measuring.perplexity(model, [actstore.Document(input_ids=[7])], context=8, progress=False)


@pytest.mark.real
def test_more_context_lowers_the_perplexity_of_a_real_model(
    real_model_folder: Any, wikipedia_path: Any
) -> None:
    lines = list(actstore.read_corpus(wikipedia_path, limit=12))
    text = " ".join(line.text or "" for line in lines)
    model = actstore.load_model(real_model_folder)
    short, long = (
        float(
            measuring.perplexity(
                model, [text], context=n, stride=n // 2, bos="<|endoftext|>", progress=False
            ).perplexity
        )
        for n in (24, 256)
    )
    assert 5 < long < 0.7 * short < 200
