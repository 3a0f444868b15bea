"""Decoded tokens against plain softmax, where answers settle, and what a terminal is shown."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_fakes import FakeMap, tiny

from actstore.errors import AnalysisError, SelectionError
from analysis import peeking, prediction


def test_tokens_and_probabilities_equal_a_plain_softmax() -> None:
    run, maps, model = tiny()
    samples = [7, -1, 0, 7]
    got = prediction.peek(run, maps, model, samples, k=4)
    assert got.sample.values.tolist() == [7, 36, 0, 7]
    for s, sample in enumerate([7, 36, 0, 7]):
        for shortcut in ("mat", "id"):
            for layer in range(4):
                state = run.states[layer, sample].astype(np.float64)
                if shortcut == "mat" and layer < 3:
                    linear = maps[layer, 3]
                    state = state @ linear.matrix + (0 if linear.bias is None else linear.bias)
                logits = model.decode(state[None].astype(np.float32))[0].astype(np.float64)
                p = np.exp(logits) / np.exp(logits).sum()
                best = sorted(range(40), key=lambda t: -p[t])[:4]
                at = got.sel(shortcut=shortcut, layer=layer).isel(sample=s)
                assert at.token_id.values.tolist() == best
                assert at.token.values.tolist() == [f" <{t}>" for t in best]
                np.testing.assert_allclose(at.probability, p[best], rtol=1e-4)


def test_the_answer_settles_where_it_appears_and_stays() -> None:
    run, maps, model = tiny(layers=4, vocab=6)
    model.head[:] = np.eye(6)
    eye = np.eye(6) * 5
    # Best token of layers 0…4 for sample 0, and for sample 1.
    for sample, best in enumerate([[3, 1, 3, 3, 3], [3, 3, 3, 2, 4]]):
        for layer, token in enumerate(best):
            run.states[layer, sample] = eye[token]
    for layer in range(4):
        maps[layer, 4] = FakeMap(np.eye(6))
    got = prediction.peek(run, maps, model, [0, 1], k=1)
    assert got.settles.sel(shortcut="id").values.tolist() == [2, 4]
    assert got.settles.sel(shortcut="mat").values.tolist() == [2, 4]
    assert got.appears.values.tolist() == [[0, 4], [0, 4]]
    assert got.answer.values.tolist() == [" <3>", " <4>"]
    first, second = prediction.peek_table(got).split("\n\n")
    assert "first at layer: mat 0, id 0; stays from: mat 2, id 2" in first
    marks = [line.split()[1][0] for line in first.splitlines()[3:]]
    assert marks == ["+", "␣", "*", "*", "*"]
    assert "first at layer: mat 4, id 4" in second


def test_context_is_the_text_around_the_sample() -> None:
    run, maps, model = tiny()
    got = prediction.peek(run, maps, model, [5, 4, 6])
    assert got.context.values.tolist() == [" <4> <5>", " <4>", " <6>"]
    assert got.continuation.values.tolist() == [" <7>", " <5> <7>", " <7> <7>"]


def test_ties_come_in_order_of_id() -> None:
    row = np.array([1, 3, 3, 2, 3, 1], np.float32)
    assert peeking._top(row, 2).tolist() == [1, 2]
    assert peeking._top(row, 4).tolist() == [1, 2, 4, 3]
    assert peeking._top(row, 6).tolist() == [1, 2, 4, 3, 0, 5]


def test_samples_that_do_not_exist_are_refused() -> None:
    run, maps, model = tiny()
    with pytest.raises(SelectionError, match=r"sample 37 asked for, but there are samples 0…36"):
        prediction.peek(run, maps, model, [0, 37])
    with pytest.raises(SelectionError, match="expected a list of whole numbers"):
        prediction.peek(run, maps, model, [])
    with pytest.raises(AnalysisError, match=r"k=41 asked for; it lies in 1…40"):
        prediction.peek(run, maps, model, [0], k=41)
    model.tokenizer = None
    with pytest.raises(AnalysisError, match="no tokenizer"):
        prediction.peek(run, maps, model, [0])


def test_the_table_marks_settled_layers_and_lines_up() -> None:
    run, maps, model = tiny()
    got = prediction.peek(run, maps, model, [5, 9], k=2)
    first, second = prediction.peek_table(got).split("\n\n")
    lines = first.splitlines()
    assert lines[0] == "sample 5:  <4> <5>"
    assert lines[1].startswith("answer ␣<")
    assert len(lines) == 3 + 4
    assert lines[2].split() == ["layer", "mat", "id"]
    assert lines[-1].split()[1].startswith("*␣<")
    starts = {line.index("id") if "id" in line else None for line in lines[2:3]}
    assert lines[-1][next(iter(starts))] == "*"
    assert second.startswith("sample 9:")


def test_nothing_in_a_token_reaches_the_terminal() -> None:
    assert peeking.visible(" a\n\x1b[31m\u202e日") == "␣a⏎\\x1b[31m\\u202e日"
    assert peeking._columns("日本é") == 5
    assert peeking._columns("e\u0301") == 1
