"""What an extraction would take is told exactly, before anything is written."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import actstore
from actstore.errors import KeyMismatchError, SamplingError, StoreError
from actstore.extraction import Forecast, plan_extraction

TEXT = [f"the cat {n} sat on mat {n * 7} and looked" for n in range(50)]
Usage = namedtuple("Usage", "total used free")


def arguments(model: Any, tokenizer: Any, store: Path, **options: Any) -> dict[str, Any]:
    return {
        "model": model,
        "corpus": TEXT,
        "store": store,
        "tokenizer": tokenizer,
        "model_name": "tiny",
        "corpus_name": "words",
        "shard_rows": 8,
        **options,
    }


def on_disk(store: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in store.rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "float16", "layers": [0, -1]},
        {"dtype": "int8"},
        {"sites": ["resid", "mlp", "final_norm"], "positions": "all", "shard_rows": None},
    ],
)
def test_bytes_files_and_rows_are_exact(
    options: dict[str, Any], tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """CASES 32."""
    asked = arguments(tiny_gpt2, tiny_tokenizer, tmp_path / "s.zarr", **options)
    told = plan_extraction(**asked)
    assert not (tmp_path / "s.zarr").exists()
    run = actstore.extract(**asked)
    assert (told.nbytes, told.files) == on_disk(tmp_path / "s.zarr")
    assert told.samples == run.n_samples
    assert told.run == "tiny/words"
    assert told.shards == run.stored.record.n_shards
    ids = run.input_ids(range(run.stored.record.n_sequences))
    # A sequence that two shards have rows of goes through the model for each.
    assert 0 < told.tokens <= 1.1 * sum(map(len, ids))
    assert told.seconds is not None
    assert told.seconds > 0
    assert told.memory_bytes > 10**6
    assert told.fits
    # Another run in the same store shares what surrounds it.
    asked |= {"corpus_name": "again"}
    before = on_disk(tmp_path / "s.zarr")
    told = plan_extraction(**asked, timed=False)
    actstore.extract(**asked)
    after = on_disk(tmp_path / "s.zarr")
    assert (told.nbytes, told.files) == (after[0] - before[0], after[1] - before[1])


def test_only_what_is_missing_is_told(tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path) -> None:
    asked = arguments(tiny_gpt2, tiny_tokenizer, tmp_path / "s.zarr")
    actstore.extract(**asked, rank=0, world_size=7)
    before = on_disk(tmp_path / "s.zarr")
    told = plan_extraction(**asked)
    assert told.shards == 6
    assert on_disk(tmp_path / "s.zarr") == before
    actstore.extract(**asked)
    after = on_disk(tmp_path / "s.zarr")
    assert (told.nbytes, told.files) == (after[0] - before[0], after[1] - before[1])
    done = plan_extraction(**asked)
    assert (done.shards, done.nbytes, done.seconds) == (0, 0, 0.0)
    assert str(done) == "tiny/words: complete, 50 samples; nothing would be computed"
    with pytest.raises(KeyMismatchError, match="seed"):
        plan_extraction(**asked, seed=1)


def test_what_cannot_fit_is_refused_before_it_is_computed(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = arguments(tiny_gpt2, tiny_tokenizer, tmp_path / "s.zarr")
    actstore.extract(**asked, rank=0, world_size=7)
    chunks = 6 * 4 * (8 * 32 * 4 + 4)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, chunks - 1))

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a forward pass for a run that has no room")

    told = plan_extraction(**asked, timed=False)
    assert not told.fits
    assert "it does not fit" in str(told)
    monkeypatch.setattr(actstore.LanguageModel, "capture", forbidden)
    said = rf"tiny/words needs {chunks:,} bytes in .*s\.zarr, but only {chunks - 1:,} are free"
    with pytest.raises(StoreError, match=said):
        actstore.extract(**asked)
    with pytest.raises(StoreError, match=r"tiny/new needs .* bytes"):
        actstore.extract(**{**asked, "corpus_name": "new"})
    assert list(actstore.open(tmp_path / "s.zarr")) == [("tiny", "words")]
    monkeypatch.undo()
    assert actstore.extract(**asked).state == "complete"


def test_a_forecast_reads_well() -> None:
    told = Forecast(
        run="gpt2/wiki",
        samples=9000,
        shards=9,
        shard_rows=1024,
        nbytes=359_424_468,
        files=155,
        free_bytes=10**10,
        tokens=123_456,
        memory_bytes=1_200_000_000,
        seconds=350.0,
        timed_batches=4,
    )
    assert str(told).splitlines() == [
        "gpt2/wiki: what extraction would take",
        "  samples       9,000",
        "  shards to do  9 of 1,024 samples each",
        "  on disk       359,424,468 bytes (359.4 MB), 10.0 GB free",
        "  files         155",
        "  memory        about 1.2 GB",
        "  tokens        123,456",
        "  time          about 6 min, from 4 batches timed just now",
    ]


def test_what_extraction_refuses_a_plan_refuses(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    asked = arguments(tiny_gpt2, tiny_tokenizer, tmp_path / "s.zarr", corpus=["cat " * 99])
    with pytest.raises(SamplingError, match="max_length=64 cuts it there"):
        plan_extraction(**asked)
    with pytest.raises(TypeError, match=r"no option seeed; sampling takes seed"):
        plan_extraction(**{**asked, "seeed": 1})
