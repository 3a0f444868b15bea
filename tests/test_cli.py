"""The command line: it does the whole job, and bad input is one line and exit code 2."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from actstore.cli import main
from actstore.wording import count

TEXT = "\n".join(f"the cat number {n} sat on the mat and looked at dog {n * 7}." for n in range(60))


@pytest.fixture
def model_folder(
    tmp_path: Path, tiny_gpt2: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerBase
) -> Path:
    folder = tmp_path / "tiny-gpt2"
    tiny_gpt2.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "cats.txt"
    path.write_text(TEXT)
    return path


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line with which the command line refuses."""
    capsys.readouterr()
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("actstore: ")
    return lines[0]


def test_the_whole_job(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, maps, report = tmp_path / "s.zarr", tmp_path / "maps.safetensors", tmp_path / "r.html"
    assert run("extract", model_folder, corpus, store, "--seed", 3) == 0
    capsys.readouterr()
    assert run("ls", store, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["corpus"], row["n_samples"]) == ("tiny-gpt2", "cats", 60)
    assert run("info", store, "--json") == 0
    assert json.loads(capsys.readouterr().out)["key"]["sampling"]["seed"] == 3
    assert run("info", store) == 0
    assert "seed: 3" in capsys.readouterr().out
    assert run("verify", store) == 0
    assert capsys.readouterr().out.strip() == "1 run read, no problems"
    assert run("fit", store, "--memory", "1MiB", "--dry-run") == 0
    assert "60 × 128 of 4 layers" in capsys.readouterr().out
    assert run("fit", store, "--workers", 3, "--dry-run") == 0
    assert "tasks             3, 3 at a time" in capsys.readouterr().out
    assert "--workers goes with --dry-run" in refused(capsys, "fit", store, "--workers", 3)
    assert "-o maps.safetensors" in refused(capsys, "fit", store)
    assert run("fit", store, "-o", maps, "--holdout", 0.25, "--intercept") == 0
    assert "r²" in capsys.readouterr().out
    assert maps.exists()
    assert run("info", store, "--json") == 0
    kept = json.loads(capsys.readouterr().out)["cache"]
    assert kept
    assert all(name.startswith("gram-") and size > 0 for name, size in kept.items())
    assert "say --yes" in refused(capsys, "rm", store, "tiny-gpt2/cats", "--cache")
    assert run("rm", store, "tiny-gpt2/cats", "--cache", "--yes") == 0
    assert f"removed {len(kept)} things" in capsys.readouterr().out
    assert run("rm", store, "tiny-gpt2/cats", "--cache", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"removed": [], "freed": 0}
    assert run("report", store, "--model", model_folder, "--holdout", 0.25, "-o", report) == 0
    assert "<html" in report.read_text()


def test_extracting_again_says_the_same_and_changes_nothing(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    assert run("extract", model_folder, corpus, store) == 0
    first = capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    assert run("extract", model_folder, corpus, store) == 0
    assert capsys.readouterr().out == first
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*") if p.is_file()} == before


def test_unknown_model_folder(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "extract", tmp_path / "no-such-model", corpus, tmp_path / "s.zarr")
    assert "no-such-model" in line
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.txt", None, "missing.txt"),
        ("empty.txt", b"", "empty"),
        ("blank.txt", b"\n \n", "empty"),
        ("latin.txt", b"caf\xe9\n", "UTF-8"),
        ("bad.jsonl", b'{"text": "one"}\n{"text": \n', "line 2"),
        ("field.jsonl", b'{"body": "one"}\n', "text"),
    ],
)
def test_unreadable_corpus(
    name: str,
    content: bytes | None,
    said: str,
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    line = refused(capsys, "extract", model_folder, path, tmp_path / "s.zarr")
    assert said in line
    assert capsys.readouterr().out == ""


def test_a_layer_that_does_not_exist(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "extract", model_folder, corpus, tmp_path / "s.zarr", "--layers", "0,13")
    assert "13" in line
    assert "0…3" in line
    assert not (tmp_path / "s.zarr").exists()


def test_a_store_of_another_version(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    assert run("extract", model_folder, corpus, store) == 0
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["actstore"]["format"] = 999
    (store / "zarr.json").write_text(json.dumps(root))
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert "999" in refused(capsys, "ls", store)
    assert "999" in refused(capsys, "extract", model_folder, corpus, store)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_what_is_not_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    assert "folder" in refused(capsys, "ls", tmp_path / "folder")
    assert "absent" in refused(capsys, "ls", tmp_path / "absent")


def test_a_run_that_is_not_there(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    assert run("extract", model_folder, corpus, store) == 0
    assert "tiny-gpt2/cats" in refused(capsys, "info", store, "gpt2/dogs")


def test_help_teaches() -> None:
    for command in ("extract", "repair", "ls", "info", "verify", "mv", "rm", "fit", "report"):
        done = subprocess.run(
            [sys.executable, "-m", "actstore", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert command in done.stdout
    assert (
        "examples:"
        in subprocess.run(
            [sys.executable, "-m", "actstore", "extract", "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def test_a_dry_run_tells_and_writes_nothing(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    asked = ("extract", model_folder, corpus, store, "--shard-rows", 16, "--quiet")
    assert run(*asked, "--dry-run") == 0
    told = capsys.readouterr().out
    assert told.startswith("tiny-gpt2/cats: what extraction would take\n  samples       60\n")
    assert "timed just now" in told
    assert not store.exists()
    assert run(*asked, "--dry-run", "--json") == 0
    forecast = json.loads(capsys.readouterr().out)
    assert (forecast["samples"], forecast["shards"], forecast["fits"]) == (60, 4, True)
    assert run(*asked, "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "complete"
    files = [path for path in store.rglob("*") if path.is_file()]
    assert forecast["files"] == len(files)
    assert forecast["nbytes"] == sum(path.stat().st_size for path in files)
    assert run(*asked, "--dry-run") == 0
    assert "nothing would be computed" in capsys.readouterr().out


def test_ranks(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    asked = ("extract", model_folder, corpus, store, "--shard-rows", 16, "--world-size", 2)
    assert run(*asked, "--rank", 1) == 0
    assert "2 of 4 shards" in capsys.readouterr().out
    assert run(*asked, "--rank", 0) == 0
    assert "complete" in capsys.readouterr().out
    assert "0 ≤ rank < world_size" in refused(capsys, *asked, "--rank", 2)
    assert "give both" in refused(capsys, *asked)


def test_repair_from_the_shell(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    assert run("extract", model_folder, corpus, store, "--positions", "last") == 0
    whole = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    chunk = store / "tiny-gpt2/cats/resid/c.2.0.0"
    data = bytearray(chunk.read_bytes())
    data[100] ^= 4
    chunk.write_bytes(data)
    capsys.readouterr()
    assert run("verify", store) == 1
    assert "tiny-gpt2/cats, resid 2, shard 0 (samples 0…59): the chunk's checksum" in (
        capsys.readouterr().out
    )
    other = tmp_path / "cats2.txt"
    other.write_text(TEXT + "\none more")
    assert "corpus.fingerprint" in refused(capsys, "repair", model_folder, other, store)
    assert run("repair", model_folder, corpus, store) == 0
    assert "tiny-gpt2/cats: 1 problem found, 0 left" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == whole
    assert run("repair", model_folder, corpus, store, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": "tiny-gpt2/cats", "found": [], "left": []
    }  # fmt: skip


def test_mv_and_rm(
    model_folder: Path,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = tmp_path / "s.zarr"
    assert run("extract", model_folder, corpus, store) == 0
    assert run("mv", store, "tiny-gpt2/cats", "small/felines", "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == {"run": "tiny-gpt2/cats", "to": "small/felines"}
    assert "give MODEL/CORPUS" in refused(capsys, "mv", store, "small/felines", "felines")
    assert "cannot name a corpus" in refused(capsys, "mv", store, "small/felines", "a/b/c")
    assert "no run 'x/y'" in refused(capsys, "rm", store, "x/y", "--yes")
    assert "say --yes" in refused(capsys, "rm", store, "small/felines")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert run("rm", store, "small/felines") == 1
    assert "left as it is" in capsys.readouterr().out
    assert run("ls", store) == 0
    assert "small  felines" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run("rm", store, "small/felines") == 0
    assert "removed small/felines (60 samples, 30.7 kB)" in capsys.readouterr().out
    assert run("ls", store, "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_half_written_store(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    assert run("extract", model_folder, corpus, store, "--shard-rows", 20) == 0
    run_folder = store / "tiny-gpt2" / "cats"
    whole = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    (run_folder / "journal" / "resid" / "c.0.1.0").unlink()
    for command in ("fit", "report"):
        line = refused(capsys, command, store, "--holdout", 0.5, "-o", tmp_path / "out")
        assert "2 of 3 shards" in line
        assert not (tmp_path / "out").exists()
    record = run_folder / "zarr.json"
    record.write_bytes(whole[record][:200])
    assert "tiny-gpt2/cats" in refused(capsys, "fit", store, "-o", tmp_path / "out")
    record.write_bytes(whole[record])
    assert run("extract", model_folder, corpus, store, "--shard-rows", 20) == 0
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == whole


def test_an_argument_that_cannot_be_read_is_one_line(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("extract", model_folder, corpus, tmp_path / "s.zarr", "--layers", "0-3")
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'0-3' is not a comma-separated list" in line
    line = refused(capsys, "extract", model_folder, corpus, tmp_path / "s", "--shard-rows", 0)
    assert "shard_rows=0" in line
    assert not (tmp_path / "s").exists()


def test_what_is_left_out_of_the_coordinates_is_said(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nested.jsonl"
    path.write_text('{"text": "one cat", "tags": ["a"], "year": 1}\n')
    assert run("extract", model_folder, path, tmp_path / "s.zarr") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert said
    assert all("field 'tags' is a list" in line for line in said)
    assert run("info", tmp_path / "s.zarr", "--json") == 0
    coordinates = json.loads(capsys.readouterr().out)["coordinates"]
    assert "year" in coordinates
    assert "tags" not in coordinates


def test_corpora_that_share_texts_are_left_out_of_the_transfer(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    part = tmp_path / "part.txt"
    part.write_text("\n".join(corpus.read_text().splitlines()[:20]))
    assert run("extract", model_folder, corpus, store) == 0
    assert run("extract", model_folder, part, store) == 0
    capsys.readouterr()
    report = tmp_path / "r.html"
    assert run("report", store, "tiny-gpt2/cats", "--holdout", 0.25, "-o", report) == 0
    captured = capsys.readouterr()
    assert "tiny-gpt2/part shares 20 texts" in captured.err
    assert "on part" not in captured.out


def test_an_option_given_twice_is_refused_and_lists_add_up(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    with pytest.raises(SystemExit) as stopped:
        run("extract", model_folder, corpus, store, "--seed", 1, "--seed", 2)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "argument --seed: given twice, 1 and 2: give it once" in line
    with pytest.raises(SystemExit):
        run("fit", store, "-o", "a", "--output", "b")
    assert "argument -o/--output: given twice, a and b" in capsys.readouterr().err
    again = ("--layers", "0,2", "--layers", "1", "--sites", "resid", "--sites", "mlp")
    assert run("extract", model_folder, corpus, store, *again) == 0
    capsys.readouterr()
    assert run("info", store, "--json") == 0
    sites = json.loads(capsys.readouterr().out)["sites"]
    assert {name: site["layers"] for name, site in sites.items()} == {
        "resid": [0, 1, 2],
        "mlp": [0, 1, 2],
    }


def test_ls_and_info_tell_what_the_cache_takes(
    model_folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.zarr"
    assert run("extract", model_folder, corpus, store) == 0
    capsys.readouterr()
    for command in ("ls", "info"):
        assert run(command, store) == 0
        assert "rm STORE RUN --cache" not in capsys.readouterr().out
    kept = store / "tiny-gpt2/cats/cache/gram-x/deep"
    kept.mkdir(parents=True)
    (kept / "c.0").write_bytes(bytes(12_345))
    assert run("ls", store) == 0
    head, row, hint = capsys.readouterr().out.splitlines()[1:]
    assert head.split()[-1] == "cache"
    assert row.endswith("complete  12.3 kB")
    assert "'actstore rm STORE RUN --cache' removes them" in hint
    assert run("ls", store, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["cache_bytes"] == 12_345
    assert run("info", store, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["cache"], told["cache_bytes"]) == ({"gram-x": 12_345}, 12_345)
    assert run("info", store) == 0
    assert "the cache takes 12.3 kB beside 30.7 kB of rows" in capsys.readouterr().out


def test_one_of_a_thing_is_no_plural(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, store = tmp_path / "one.txt", tmp_path / "s.zarr"
    text.write_text("the cat")
    assert run("extract", model_folder, text, store, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "1 of 1 sample each" in out
    assert "from 1 batch timed" in out
    assert run("extract", model_folder, text, store) == 0
    assert "  1 sample, float32" in capsys.readouterr().out
    (store / "tiny-gpt2/one/resid/c.0.0.0").unlink()
    assert run("extract", model_folder, text, store) == 0
    assert "is damaged (1 problem, first" in capsys.readouterr().err
    assert run("rm", store, "tiny-gpt2/one", "--yes") == 0
    assert "(1 sample, 512 B" in capsys.readouterr().out.replace("528 B", "512 B")


def test_counts() -> None:
    assert [count(n, "batch") for n in (0, 1, 2_000)] == ["0 batches", "1 batch", "2,000 batches"]
    assert count(0, "run", "no") == "no runs"
