"""Extraction into compressed chunks: however it is made, grown or mended, the same store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import actstore
from actstore.cli import main
from actstore.errors import KeyMismatchError, StoreError
from actstore.extraction import plan_extraction, repair
from actstore.models import LanguageModel

TEXT = [f"the cat {n} sat on mat {n * 7} and looked" for n in range(60)]


@pytest.fixture
def extracted(tiny_gpt2: Any, tiny_tokenizer: Any) -> Any:
    model = actstore.load_model(tiny_gpt2, tokenizer=tiny_tokenizer, name="tiny")

    def run(store: Path, n: int = 60, call: Any = actstore.extract, **options: Any) -> Any:
        names = {"corpus_name": "words", "shard_rows": 8}
        return call(model, TEXT[:n], store, **{**names, **options})

    return run


def files(store: Path) -> dict[str, bytes]:
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


def test_the_default_is_a_store_without_compression(extracted: Any, tmp_path: Path) -> None:
    plain = extracted(tmp_path / "a")
    extracted(tmp_path / "b", codec="none")
    packed = extracted(tmp_path / "c", codec="zstd")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert (plain.info()["codec"], packed.info()["codec"]) == ("none", "zstd")
    assert plain.info()["key"] == packed.info()["key"]
    np.testing.assert_array_equal(packed.resid.values, plain.resid.values)
    alone = xr.open_zarr(tmp_path / "c", group="tiny/words", consolidated=False)
    np.testing.assert_array_equal(alone.resid.values, plain.resid.values)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_interrupted_shared_or_grown_it_ends_in_the_same_bytes(
    dtype: str, extracted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"dtype": dtype, "codec": "zstd"}
    extracted(tmp_path / "whole", **options)
    whole = files(tmp_path / "whole")
    capture, calls = LanguageModel.capture, 0

    def interrupted(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return capture(self, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "capture", interrupted)
        with pytest.raises(KeyboardInterrupt):
            extracted(tmp_path / "resumed", **options)
    extracted(tmp_path / "resumed", dtype=dtype)
    assert files(tmp_path / "resumed") == whole
    for rank in (1, 0):
        extracted(tmp_path / "shared", **options, rank=rank, world_size=2)
    assert files(tmp_path / "shared") == whole
    extracted(tmp_path / "grown", 20, **options)
    grown = extracted(tmp_path / "grown", dtype=dtype, append=True)
    assert files(tmp_path / "grown") == whole
    assert grown.verify() == []


def test_a_flipped_byte_is_mended_without_naming_the_codec(extracted: Any, tmp_path: Path) -> None:
    run = extracted(tmp_path / "s", codec="zstd")
    whole = files(tmp_path / "s")
    chunk = tmp_path / "s/tiny/words/resid/c.1.2.0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 8
    chunk.write_bytes(data)
    assert [(p.layer, p.shard) for p in run.verify()] == [(1, 2)]
    with pytest.raises(actstore.errors.CorruptionError, match="resid layer 1, shard 2"):
        run.resid.sel(layer=1).compute()

    def mend(model: Any, text: Any, store: Path, **_: Any) -> Any:
        return repair(model, actstore.read_corpus(text, name="words"), store)

    assert extracted(tmp_path / "s", call=mend).verify() == []
    assert files(tmp_path / "s") == whole


@pytest.mark.parametrize("stored", ["none", "zstd"])
def test_another_codec_is_refused_and_none_keeps_what_there_is(
    stored: str, extracted: Any, tmp_path: Path
) -> None:
    other = "zstd" if stored == "none" else "none"
    extracted(tmp_path / "s", codec=stored)
    before = files(tmp_path / "s")
    told = rf"tiny/words exists and is stored with codec '{stored}', asked for '{other}'"
    for options in ({}, {"append": True}, {"layers": [0]}, {"call": plan_extraction}):
        with pytest.raises(KeyMismatchError, match=told):
            extracted(tmp_path / "s", codec=other, **options)
    assert extracted(tmp_path / "s").info()["codec"] == stored
    assert files(tmp_path / "s") == before
    with pytest.raises(StoreError, match="codec 'lz4' asked for: choose one of none, zstd"):
        extracted(tmp_path / "new", codec="lz4")
    assert not (tmp_path / "new").exists()


def test_the_forecast_says_at_most(extracted: Any, tmp_path: Path) -> None:
    told = extracted(tmp_path / "s", call=plan_extraction, codec="zstd", timed=False)
    assert told.codec == "zstd"
    assert f"at most {told.nbytes:,} bytes" in str(told)
    plain = extracted(tmp_path / "s", call=plan_extraction, timed=False)
    assert "at most" not in str(plain)
    extracted(tmp_path / "s", codec="zstd", rank=0, world_size=2)
    rest = extracted(tmp_path / "s", call=plan_extraction, timed=False)
    assert (rest.codec, rest.shards) == ("zstd", 4)
    extracted(tmp_path / "s")
    written = files(tmp_path / "s")
    assert len(written) == told.files
    assert sum(map(len, written.values())) <= told.nbytes


def test_the_command_line(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_gpt2.to(torch.float32).save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "cats.txt").write_text("\n".join(TEXT))
    command = ["extract", *(str(tmp_path / name) for name in ("model", "cats.txt", "s.zarr"))]
    assert main([*command, "--codec", "zstd", "--dry-run", "--quiet"]) == 0
    assert "at most" in capsys.readouterr().out
    assert main([*command, "--codec", "zstd", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["codec"] == "zstd"
    assert main([*command, "--quiet"]) == 0
    assert main(["verify", str(tmp_path / "s.zarr")]) == 0
    capsys.readouterr()
    assert main([*command, "--codec", "none", "--quiet"]) == 2
    error = capsys.readouterr().err.strip()
    assert "stored with codec 'zstd', asked for 'none'" in error
    assert len(error.splitlines()) == 1
    with pytest.raises(SystemExit):
        main([*command, "--codec", "lz4"])
    assert "lz4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["extract", "--help"])
    assert "2 to 26%" in capsys.readouterr().out
