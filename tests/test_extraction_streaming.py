"""A Gram straight from the forward pass is the Gram of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import SelectionError
from actstore.extraction.streaming import forward_rows
from actstore.grams import gram

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", "run", "over", "hill", "rain"]


def sentences(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 14))) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("positions", ["random", "all"])
def test_the_gram_of_the_forward_pass_is_the_stores(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path, dtype: str, positions: str
) -> None:
    options = {
        "tokenizer": tiny_tokenizer,
        "positions": positions,
        "dtype": dtype,
        "sites": ("resid", "mlp"),
        "batch_tokens": 64,
        "shard_rows": 16,
    }
    run = actstore.extract(tiny_gpt2, sentences(40), tmp_path / "s.zarr", **options)
    stored = gram(run, sites=("resid", "mlp"))
    with forward_rows(tiny_gpt2, sentences(40), **options) as rows:
        assert rows.n_samples == run.n_samples
        found = gram(rows, sites=("resid", "mlp"))
        assert rows.shards_computed == -(-run.n_samples // 16)
        parts = gram(rows, parts=4)
    assert found.n == stored.n
    for i in stored.layers:
        for j in stored.layers:
            expected = stored.cross(i, j)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found.cross(i, j), expected, rtol=1e-12, atol=1e-14 * scale)
    assert sorted(part.n for part in parts.parts)[0] > 0
    fingerprint = stored.provenance["model_fingerprint"]
    assert fingerprint
    assert found.provenance["model_fingerprint"] == fingerprint
    scores = actstore.fit(found).r2(run)
    np.testing.assert_allclose(scores, actstore.fit(stored).r2(run), rtol=1e-9)


def test_what_is_not_planned_is_said(tiny_gpt2: Any, tiny_tokenizer: Any) -> None:
    with forward_rows(tiny_gpt2, sentences(5), tokenizer=tiny_tokenizer) as rows:
        assert rows.coordinate("document").tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(SelectionError, match="coordinate 'genre' asked for"):
            rows.coordinate("genre")
