"""Damage from the command line: what tells of it, and what makes it good again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from actstore.cli import main
from actstore.errors import CorruptionError

pytestmark = pytest.mark.fault
TEXT = "\n".join(f"the cat number {n} sat on the mat and looked at dog {n * 7}." for n in range(60))
NAME = "tiny-gpt2/cats"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are rounded alike only where as many threads make them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def sources(tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any) -> tuple[Path, Path]:
    folder = tmp_path / "tiny-gpt2"
    tiny_gpt2.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    (tmp_path / "cats.txt").write_text(TEXT)
    return folder, tmp_path / "cats.txt"


@pytest.fixture
def store(sources: tuple[Path, Path], tmp_path: Path) -> Path:
    """Three shards, asked for twice: two layers, then a site inside the blocks."""
    path = tmp_path / "s.zarr"
    options = {"shard_rows": 20, "seed": 3, "max_length": 20, "progress": False}
    for more in ({"layers": [0, 3]}, {"sites": ["mlp"]}):
        actstore.extract(str(sources[0]), str(sources[1]), path, **options, **more)
    return path


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def tree(store: Path) -> dict[str, bytes]:
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_verify_tells_a_whole_run_from_one_that_lost_its_journal(
    store: Path, sources: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tree(store)
    assert run("verify", store) == 0
    assert capsys.readouterr().out == "1 run read, no problems\n"
    (store / NAME / "journal/mlp/c.0.1.0").unlink()
    assert run("verify", store) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{NAME}, mlp, shard 1 (samples 20…39): not committed (3 blocks)"
    assert lines[1].startswith(f"{NAME} is not whole: the 'actstore extract' that made it goes on")
    assert "'actstore repair' does the same" in lines[1]
    assert lines[2] == "1 run read, no problems, 1 shard not committed"
    assert run("verify", store, "--json") == 1
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["site"], told["shard"], told["pending"]) == ("mlp", 1, True)
    opened = actstore.open(store)["tiny-gpt2", "cats"]
    assert opened.verify() == []
    assert [(p.site, p.shard, p.samples) for p in opened.verify(whole=True)] == [
        ("mlp", 1, (20, 39))
    ]
    assert actstore.open(store).verify() == []
    assert len(actstore.open(store).verify(whole=True)) == 1
    assert run("repair", *sources, store) == 0
    assert f"{NAME}: 1 problem found, 0 left" in capsys.readouterr().out
    assert tree(store) == whole


def test_verify_of_one_run_reads_only_that_one(
    store: Path, sources: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    other = store / "tiny-gpt2/dogs"
    shutil.copytree(store / NAME, other)
    flip(other / "mlp/c.0.0.0", 9)
    assert run("verify", store, NAME) == 0
    assert run("verify", store, "tiny-gpt2/dogs") == 1
    assert "tiny-gpt2/dogs is damaged: 'actstore repair' makes again" in capsys.readouterr().out


RECORD = [["zarr.json"], ["zarr.json", "document/c.0", "resid/c.0.1.0", "journal/resid/c.0.2.0"]]
OTHERS = [
    ["position/c.0"],
    ["token/zarr.json", "layer/c.0", "block/c.0"],
    ["sequences/input_ids/c.0", "sequences/start/zarr.json"],
    ["resid/zarr.json", "journal/zarr.json", "journal/mlp/zarr.json", "../zarr.json"],
    ["../../zarr.json"],
]


@pytest.mark.parametrize(
    ("damaged", "gone"),
    [(names, False) for names in RECORD + OTHERS] + [(names, True) for names in OTHERS],
)
def test_repair_makes_every_kind_of_file_again(
    damaged: list[str],
    gone: bool,
    store: Path,
    sources: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = tree(store)
    for name in damaged:
        path = store / NAME / name
        if gone:
            path.resolve().unlink()
        elif name == "zarr.json":
            record = json.loads(path.read_bytes())
            record["attributes"]["actstore"]["n_sequences"] += 1
            path.write_text(json.dumps(record))
        else:
            flip(path, path.stat().st_size // 2 if path.suffix != ".json" else 0)
    if damaged != ["../../zarr.json"]:
        assert run("verify", store) == 1
    capsys.readouterr()
    assert run("repair", *sources, store) == 0
    assert ", 0 left" in capsys.readouterr().out
    assert tree(store) == whole
    assert run("verify", store) == 0


def test_a_digest_that_was_damaged_is_put_back(store: Path, sources: tuple[Path, Path]) -> None:
    whole = tree(store)
    record = json.loads((store / NAME / "zarr.json").read_bytes())
    record["attributes"]["actstore"]["digest"] = "0" * 64
    (store / NAME / "zarr.json").write_text(json.dumps(record))
    assert run("repair", *sources, store) == 0
    assert tree(store) == whole


def test_repair_refuses_by_name_what_does_not_prove_to_be_what_was_written(
    store: Path, sources: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        capsys.readouterr()
        before = tree(store)
        assert run("repair", *arguments, store) == 2
        assert tree(store) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    path = store / NAME / "zarr.json"
    sound = path.read_bytes()
    record = json.loads(sound)
    record["attributes"]["actstore"]["key"]["sampling"]["seed"] = 4
    path.write_text(json.dumps(record))
    assert f"{NAME}: the run's metadata (zarr.json) is damaged, and what" in refused(*sources)
    record["attributes"]["actstore"]["dtype"] = "flaot32"
    path.write_text(json.dumps(record))
    assert "does not go together with this model and text (dtype 'flaot32'" in refused(*sources)
    for entry, value in (("shard_rows", "x"), ("requests", []), ("requests", [{"resid": [9]}])):
        record = json.loads(sound)
        record["attributes"]["actstore"][entry] = value
        path.write_text(json.dumps(record))
        line = refused(*sources)
        assert f"{NAME}: the run's metadata (zarr.json) is damaged" in line
        assert "remove the run and extract it again" in line
    path.write_bytes(sound[:300])
    line = refused(*sources)
    assert f"{NAME}: the run's metadata (zarr.json) cannot be read" in line
    assert "remove the run and extract it again" in line
    path.write_bytes(sound)
    (store / NAME / "position/c.0").unlink()
    other = tmp_path / "dogs.txt"
    other.write_text(TEXT.replace("cat", "dog"))
    assert "corpus.fingerprint" in refused(sources[0], other)


def test_a_coordinate_of_other_bytes_is_not_put_back(
    store: Path, sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another version of the tokenizer's library spelled tokens in another way."""
    from actstore.extraction import planning

    flip(store / NAME / "token/c.0", 20)
    flip(store / NAME / "position/c.0", 20)
    before = tree(store)
    monkeypatch.setattr(
        planning, "token_strings", lambda _, ids: np.array([f"<{i}>" for i in ids], object)
    )
    with pytest.raises(CorruptionError, match="coordinate token is damaged, and model and text"):
        actstore.repair(str(sources[0]), str(sources[1]), store)
    assert tree(store) == before


def test_extracting_again_says_what_it_mended_and_ls_that_there_is_damage(
    store: Path, sources: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tree(store)
    again = ("extract", *sources, store, "--layers", "0,3", "--seed", 3, "--max-length", 20)
    assert run(*again, "--quiet") == 0
    assert "mended" not in capsys.readouterr().err
    flip(store / NAME / "resid/zarr.json", 0)
    (store / NAME / "journal/resid/c.0.1.0").unlink()
    assert run("ls", store) == 0
    assert "damaged: 1 problem" in capsys.readouterr().out
    assert run(*again, "--quiet") == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "made good" in line]
    assert told == [
        f"actstore: warning: {NAME} was not as it was left, and is made good: "
        f"{NAME}/resid/zarr.json is written again; "
        "shard 1 has chunks that are not in the journal (a writer was stopped, or it was lost)"
    ]
    assert tree(store) == whole
    assert run("ls", store) == 0
    assert "complete" in capsys.readouterr().out
