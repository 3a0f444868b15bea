"""The draw of positions: uniform, reproducible, and refused where it makes no sense."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.corpus import Sampling
from actstore.corpus.sampling import uniform_subset
from actstore.errors import SamplingError

IDS = np.arange(10, 16, dtype=np.int32)
DRAWN = [[11], [813], [814], [475]]
DRAWN_FIVE = [6, 33, 48, 69, 72]
SPECIAL = np.array([True, False, False, False, False, True])


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"positions": "all"}, [1, 2, 3, 4]),
        ({"positions": "all", "include_special": True}, [0, 1, 2, 3, 4, 5]),
        ({"positions": "last"}, [4]),
        ({"positions": "last", "include_special": True}, [5]),
        ({"positions": "every:3"}, [1, 4]),
        ({"positions": "random", "per_document": 9}, [1, 2, 3, 4]),
        ({"positions": [0, -1, 99, -99, 0]}, [0, 5]),
        ({"positions": range(2, 4)}, [2, 3]),
    ],
)
def test_named_and_explicit_positions(choice: dict[str, Any], expected: list[int]) -> None:
    drawn = Sampling(**choice).draw(0, IDS, SPECIAL)
    assert drawn.tolist() == expected
    assert drawn.dtype == np.int32


def test_functions_choose_by_number_ids_and_mask() -> None:
    def odd(document: int, ids: np.ndarray, special: np.ndarray) -> np.ndarray:
        return (ids % 2 == 1) & ~special

    def by_number(document: int, ids: np.ndarray, special: np.ndarray) -> list[int]:
        return [document, -1, document]

    def nothing(document: int, ids: np.ndarray, special: np.ndarray) -> list[int]:
        return []

    assert Sampling(odd).draw(0, IDS, SPECIAL).tolist() == [1, 3]
    assert Sampling(by_number).draw(3, IDS, SPECIAL).tolist() == [3, 5]
    assert Sampling(nothing).draw(3, IDS, SPECIAL).tolist() == []
    with pytest.raises(SamplingError, match=r"gave -1…6 for document 6, .* positions 0…5"):
        Sampling(by_number).draw(6, IDS, SPECIAL)

    def floats(document: int, ids: np.ndarray, special: np.ndarray) -> list[float]:
        return [0.5]

    with pytest.raises(SamplingError, match="gave float64 of shape"):
        Sampling(floats).draw(0, IDS, SPECIAL)  # type: ignore[arg-type]


def test_functions_are_told_apart_in_the_key() -> None:
    def made(n: int) -> Callable[..., list[int]]:
        return lambda document, ids, special: [n]

    first = Sampling(lambda document, ids, special: [0]).to_dict()
    second = Sampling(lambda document, ids, special: [1]).to_dict()
    assert first["positions"]["code"] != second["positions"]["code"]
    with pytest.raises(SamplingError, match="closes over nothing"):
        Sampling(made(3))
    named = made(3)
    named.key = "third token"  # type: ignore[attr-defined]
    assert Sampling(named).to_dict()["positions"] == {"function": "third token"}


@given(
    seed=st.integers(0, 2**64 - 1),
    document=st.integers(0, 2**40),
    n=st.integers(0, 300),
    k=st.integers(1, 20),
)
@settings(max_examples=100, deadline=None)
def test_drawn_numbers_are_different_increasing_and_reproducible(
    seed: int, document: int, n: int, k: int
) -> None:
    drawn = uniform_subset(seed, document, n, k).tolist()
    assert drawn == sorted(set(drawn))
    assert len(drawn) == min(n, k)
    assert all(0 <= number < n for number in drawn)
    assert drawn == uniform_subset(seed, document, n, k).tolist()


def test_the_draw_is_uniform_over_subsets() -> None:
    counts = Counter(tuple(uniform_subset(5, d, 5, 3).tolist()) for d in range(20_000))
    assert len(counts) == 10
    # chi-square with 9 degrees of freedom: 27.9 has probability 0.001
    assert sum((count - 2000) ** 2 / 2000 for count in counts.values()) < 27.9


def test_the_draw_never_changes() -> None:
    assert [uniform_subset(0, d, 1000, 1).tolist() for d in range(4)] == DRAWN
    assert uniform_subset(7, 3, 100, 5).tolist() == DRAWN_FIVE


def test_seeds_and_documents_are_independent() -> None:
    by_seed = [uniform_subset(seed, 1, 1000, 1)[0] for seed in range(200)]
    by_document = [uniform_subset(1, document, 1000, 1)[0] for document in range(200)]
    assert len(set(by_seed)) > 150
    assert len(set(by_document)) > 150
    assert by_seed != by_document


def test_to_dict_is_complete_json() -> None:
    record = Sampling("random", seed=2**64 - 1, per_document=3, bos="<s>", max_length=9).to_dict()
    assert json.loads(json.dumps(record)) == {
        "positions": "random",
        "seed": 2**64 - 1,
        "per_document": 3,
        "bos": "<s>",
        "include_special": False,
        "max_length": 9,
    }
    windowed = Sampling(max_length=8, overflow="window", stride=2, context="prefix").to_dict()
    assert windowed == Sampling(max_length=8).to_dict() | {
        "overflow": "window",
        "stride": 2,
        "context": "prefix",
    }
    assert Sampling([1, np.int64(2)]).to_dict()["positions"] == [1, 2]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"positions": "first"}, r"positions='first': choose 'random', 'all', 'last'"),
        ({"positions": "every:0"}, r"positions='every:0'"),
        ({"positions": []}, r"positions is empty"),
        ({"positions": [1.5]}, r"a name, ints or a function"),
        ({"positions": 3}, r"a name, ints or a function"),
        ({"per_document": 0}, r"per_document=0: at least 1"),
        ({"positions": "last", "per_document": 2}, r"'random' and 'mask' only"),
        ({"seed": -1}, r"seed=-1: a seed is in 0…2⁶⁴−1"),
        ({"seed": 2**64}, r"a seed is in"),
        ({"seed": 1.5}, r"seed=1.5: an int is needed"),
        ({"bos": ""}, r"bos=''"),
        ({"max_length": 0}, r"max_length=0"),
        ({"overflow": "wrap"}, r"overflow='wrap': choose 'truncate' or 'window'"),
        ({"context": "left"}, r"context='left': choose 'full' or 'prefix'"),
        ({"overflow": "window"}, r"needs max_length"),
        ({"stride": 2, "max_length": 8}, r"stride=2 goes with overflow='window' only"),
        ({"stride": 9, "max_length": 8, "overflow": "window"}, r"stride=9: it lies in 1…8"),
        ({"stride": 0, "max_length": 8, "overflow": "window"}, r"stride=0: it lies in 1…8"),
    ],
)
def test_senseless_choices_are_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        Sampling(**choice)
