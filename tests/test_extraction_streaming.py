"""A Gram straight from the forward pass is the Gram of the store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import GramError, SelectionError
from actstore.extraction import gram as gram_of
from actstore.extraction import plan_gram
from actstore.extraction.streaming import ForwardRows, forward_rows
from actstore.grams import Gram, gram

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


def same(found: Gram, expected: Gram) -> None:
    assert (found.layers, found.n) == (expected.layers, expected.n)
    for i in expected.layers:
        for j in expected.layers:
            values = expected.cross(i, j)
            scale = np.abs(values).max()
            np.testing.assert_allclose(found.cross(i, j), values, rtol=1e-12, atol=1e-13 * scale)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Shards that went through the model, in order."""
    shards: list[int] = []
    compute = ForwardRows._compute

    def counted(self: ForwardRows, shard: int) -> dict[str, np.ndarray]:
        shards.append(shard)
        return compute(self, shard)

    monkeypatch.setattr(ForwardRows, "_compute", counted)
    return shards


def test_one_call_is_the_stored_way(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path, computed: list[int]
) -> None:
    options: dict[str, Any] = {
        "tokenizer": tiny_tokenizer,
        "sites": ("resid", "mlp"),
        "layers": [0, 2],
        "seed": 3,
        "per_document": 2,
        "batch_tokens": 64,
        "shard_rows": 16,
    }
    run = actstore.extract(tiny_gpt2, sentences(40), tmp_path / "s.zarr", **options)
    for more in ({}, {"parts": 4}):
        expected = gram_of(run, sites=("resid", "mlp"), cache=False, **more)
        found = gram_of(tiny_gpt2, sentences(40), **options, **more)
        same(found, expected)
        assert len(found.parts) == len(expected.parts)
        for part, its in zip(found.parts, expected.parts, strict=True):
            same(part, its)
        assert found.run is None
    assert computed == 2 * [0, 1, 2, 3, 4]
    plan = plan_gram(tiny_gpt2, sentences(40), **options)
    assert plan.n_samples == run.n_samples
    assert plan.flops == plan_gram(run, sites=("resid", "mlp")).flops
    assert len(computed) == 10


def test_a_folder_keeps_it_and_takes_the_tiles_of_several_passes(
    tiny_gpt2: Any,
    tiny_tokenizer: Any,
    tmp_path: Path,
    computed: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"tokenizer": tiny_tokenizer, "positions": "all", "shard_rows": 64}
    expected = gram_of(tiny_gpt2, sentences(40), **options)
    shards = list(computed)
    kept = {**options, "folder": tmp_path / "kept"}
    same(gram_of(tiny_gpt2, sentences(40), **kept), expected)
    assert computed == 2 * shards
    again = gram_of(tiny_gpt2, sentences(40), **kept)
    np.testing.assert_array_equal(again.cross(0, 3), expected.cross(0, 3))
    assert computed == 2 * shards
    spare = {**options, "folder": tmp_path / "tiled"}
    monkeypatch.setattr("actstore.grams.planning.BLOCK_ROWS", (16, 512))
    few = "100KB"
    plan = plan_gram(tiny_gpt2, sentences(40), **spare, memory=few)
    assert plan.passes > 1
    assert "tiles on disk in between, each runs the model over the corpus" in plan.describe()
    with pytest.raises(GramError, match=rf"takes {plan.passes} passes, and each runs the model"):
        gram_of(tiny_gpt2, sentences(40), **spare, memory=few)
    assert computed == 2 * shards
    found = gram_of(tiny_gpt2, sentences(40), **spare, memory=few, passes=plan.passes)
    assert len(computed) > 3 * len(shards)
    same(found, expected)
    with pytest.raises(GramError, match="memory='1KB' is too little"):
        gram_of(tiny_gpt2, sentences(40), **options, memory="1KB")


class Stopped(Exception):
    """What ends a computation in the middle."""


def test_an_interrupted_one_goes_on_from_its_folder(
    tiny_gpt2: Any,
    tiny_tokenizer: Any,
    tmp_path: Path,
    computed: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {
        "tokenizer": tiny_tokenizer,
        "positions": "all",
        "shard_rows": 32,
        "memory": "4MB",
    }
    texts = sentences(400)
    monkeypatch.setattr("actstore.grams.planning.BLOCK_ROWS", (32, 512))
    expected = gram_of(tiny_gpt2, texts, **options)
    shards = len(computed)
    counted = ForwardRows._compute

    def stopping(self: ForwardRows, shard: int) -> dict[str, np.ndarray]:
        if shard == shards - 4:
            raise Stopped
        return counted(self, shard)

    with monkeypatch.context() as patch:
        patch.setattr(ForwardRows, "_compute", stopping)
        with pytest.raises(Stopped):
            gram_of(tiny_gpt2, texts, **options, folder=tmp_path, checkpoint=0.0)
    computed.clear()
    found = gram_of(tiny_gpt2, texts, **options, folder=tmp_path)
    assert computed[-1] == shards - 1
    assert len(computed) < shards - 4
    np.testing.assert_array_equal(found.cross(0, 3), expected.cross(0, 3))
    assert not list(tmp_path.glob("gram-*/so_far_*"))


def test_what_does_not_go_together_is_refused(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    run = actstore.extract(tiny_gpt2, sentences(9), tmp_path / "s", tokenizer=tiny_tokenizer)
    for call, error, message in (
        (lambda: gram_of(run, sentences(9)), GramError, "has its corpus: leave corpus= out"),
        (lambda: gram_of(run, positions="all"), TypeError, "of a run has no option positions; it"),
        (lambda: gram_of(gram(run)), GramError, "is a Gram already"),
        (lambda: gram_of(tiny_gpt2), GramError, "a GPT2LMHeadModel is no run: give a Run, or a"),
        (
            lambda: gram_of(tiny_gpt2, ["a"], sead=1),
            TypeError,
            "has no option sead; it takes .*seed",
        ),
        (lambda: gram_of(tiny_gpt2, ["a"], client=1), GramError, "client= goes with a stored run"),
        (lambda: plan_gram(run, progress=True), TypeError, "has no option progress"),
        (
            lambda: gram_of(tiny_gpt2, ["a"], tokenizer=tiny_tokenizer, passes=0),
            GramError,
            "passes=0: the model goes over the corpus at least once",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_stored_run_needs_no_torch(tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path) -> None:
    actstore.extract(tiny_gpt2, sentences(9), tmp_path / "s.zarr", tokenizer=tiny_tokenizer)
    code = (
        "import sys, actstore\n"
        "from actstore.extraction import gram\n"
        "(run,) = actstore.open(sys.argv[1]).values()\n"
        "print(gram(run).n, [m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s.zarr")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.stdout.strip() == "9 []"
