"""Many writers of one run, on real processes: no shard twice, none lost, the same bytes."""

from __future__ import annotations

import filecmp
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zarr.storage import MemoryStore

import actstore
from actstore.errors import KeyMismatchError, LockedError, ModelError, StoreError
from actstore.store import Share, resume_run

ROOT = Path(__file__).parent.parent

CHILD = """
import json, os, sys, time
import actstore
from actstore.models import LanguageModel

job = json.loads(sys.argv[1])
capture = LanguageModel.capture

def slow(self, *arguments, **options):
    time.sleep(job["pause"])
    return capture(self, *arguments, **options)

LanguageModel.capture = slow
while not os.path.exists(job["start"]):
    time.sleep(0.005)
actstore.extract(job["model"], job["text"], job["store"], model_name="tiny", corpus_name="words",
                 shard_rows=8, progress=False, **job["options"])
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are rounded alike only where as many threads make them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def sources(tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any) -> tuple[Path, Path]:
    """Model folder and text file."""
    tiny_gpt2.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    lines = [f"the cat {n} sat on mat {n * 7} and looked" for n in range(80)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    return tmp_path / "model", tmp_path / "text.txt"


@pytest.fixture
def writer(sources: tuple[Path, Path], tmp_path: Path) -> Iterator[Any]:
    """Start a writer in a process of its own; it begins once ``start`` is there."""
    processes: list[subprocess.Popen[str]] = []

    def begin(store: Path, pause: float = 0.0, **options: Any) -> subprocess.Popen[str]:
        job = {
            "model": str(sources[0]),
            "text": str(sources[1]),
            "store": str(store),
            "pause": pause,
            "start": str(tmp_path / "start"),
            "options": options,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, json.dumps(job)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def whole(sources: tuple[Path, Path], tmp_path: Path) -> Path:
    """The store that a single writer makes."""
    return extracted(sources, tmp_path / "whole.zarr")


def extracted(sources: tuple[Path, Path], store: Path, **options: Any) -> Path:
    model, text = sources
    actstore.extract(
        str(model), text, store, model_name="tiny", corpus_name="words", shard_rows=8, **options
    )
    return store


def same_tree(a: Path, b: Path) -> bool:
    files = [sorted(p.relative_to(x) for p in x.rglob("*") if p.is_file()) for x in (a, b)]
    return files[0] == files[1] and not any(filecmp.cmpfiles(a, b, files[0], shallow=False)[1:])


def committed(store: Path) -> set[int]:
    return {int(p.name.split(".")[2]) for p in (store / "tiny/words/journal/resid").glob("c.0.*.0")}


@pytest.mark.fault
def test_three_writers_at_once_one_killed_end_in_the_same_store(
    writer: Any, sources: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    store = tmp_path / "many.zarr"
    pauses = (0.0, 0.0, 5.0)
    ranks = [writer(store, pause, rank=r, world_size=3) for r, pause in enumerate(pauses)]
    time.sleep(0.1)
    (tmp_path / "start").touch()
    for process in ranks[:2]:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    # The slow one lives and holds its shards: nobody else may write them.
    assert ranks[2].poll() is None, ranks[2].communicate()
    assert committed(store) == {k for k in range(10) if k % 3 < 2}
    with pytest.raises(LockedError, match=r"shard 2 of tiny/words in .* another process"):
        extracted(sources, store, rank=2, world_size=3)
    with pytest.raises(LockedError, match=r"shard [258] of tiny/words"):
        extracted(sources, store, rank=0, world_size=2)
    with pytest.raises(LockedError, match=r"tiny/words in .* is being written by another process"):
        extracted(sources, store)
    with pytest.raises(LockedError):
        actstore.open(store).rename("tiny", "words", to=("tiny", "others"))
    ranks[2].send_signal(signal.SIGKILL)
    ranks[2].wait(60)
    half = actstore.open(store)["tiny", "words"]
    assert half.verify() == []
    reference = actstore.open(whole)["tiny", "words"].resid.values
    np.testing.assert_array_equal(half.resid.values, reference[:, half.samples.sequence.values])
    # A dead process holds nothing.
    extracted(sources, store, rank=2, world_size=3)
    assert actstore.open(store)["tiny", "words"].state == "complete"
    assert same_tree(store, whole)


@pytest.mark.fault
def test_a_writer_killed_while_planning_holds_nobody_up(
    writer: Any, sources: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    store = tmp_path / "many.zarr"
    (tmp_path / "start").touch()
    planner = writer(store, 60.0, rank=1, world_size=2)
    while not (store / "tiny" / "words").exists():
        assert planner.poll() is None, planner.communicate()
    planner.kill()
    planner.wait(60)
    for rank in (0, 1):
        extracted(sources, store, rank=rank, world_size=2)
    assert same_tree(store, whole)


def test_any_number_of_writers_one_after_the_other(
    sources: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    """World sizes may change between attempts, and exceed the shards."""
    store = tmp_path / "many.zarr"
    for rank, size in ((3, 4), (0, 2), (12, 13), (5, 7)):
        extracted(sources, store, rank=rank, world_size=size)
    assert committed(store) == {3, 7, 0, 2, 4, 6, 8, 5}
    extracted(sources, store)
    assert same_tree(store, whole)


def test_layers_are_added_by_many_writers(sources: tuple[Path, Path], tmp_path: Path) -> None:
    store = extracted(sources, tmp_path / "s.zarr", layers=[0])
    extracted(sources, store, rank=1, world_size=2)
    run = actstore.open(store)["tiny", "words"]
    assert run.sites == {"resid": [0]}
    assert run.n_samples == 80
    extracted(sources, store, rank=0, world_size=2)
    run = actstore.open(store)["tiny", "words"]
    assert run.sites == {"resid": [0, 1, 2, 3]}
    assert run.state == "complete"
    assert run.verify() == []


def test_a_share_mends_what_is_its_own(
    sources: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    store = extracted(sources, tmp_path / "s.zarr")
    for shard in (2, 3):
        (store / f"tiny/words/resid/c.1.{shard}.0").unlink()
    (store / "tiny/words/resid/c.0.3.0.partial").write_bytes(b"half")
    with pytest.warns(UserWarning, match="is damaged"):
        extracted(sources, store, rank=0, world_size=2)
    assert {p.shard for p in actstore.open(store).verify()} == {3}
    assert (store / "tiny/words/resid/c.0.3.0.partial").exists()
    with pytest.warns(UserWarning, match="is damaged"):
        extracted(sources, store, rank=1, world_size=2)
    assert same_tree(store, whole)


@pytest.mark.parametrize(
    ("rank", "size"), [(2, 2), (-1, 2), (0, None), (None, 2), (0, 0), ("0", 2)]
)
def test_ranks_that_make_no_sense(
    rank: Any, size: Any, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="give both, as whole numbers, with 0 ≤ rank < world_size"):
        extracted(sources, tmp_path / "s.zarr", rank=rank, world_size=size)
    assert not (tmp_path / "s.zarr").exists()


def test_a_share_needs_the_same_key(sources: tuple[Path, Path], tmp_path: Path) -> None:
    store = extracted(sources, tmp_path / "s.zarr", rank=0, world_size=2)
    with pytest.raises(KeyMismatchError, match="seed"):
        extracted(sources, store, rank=1, world_size=2, seed=5)
    run = actstore.open(store)["tiny", "words"]
    with pytest.raises(KeyMismatchError, match="asked for None"):
        resume_run(
            store,
            "tiny",
            "words",
            key={},
            wanted={"resid": [0]},
            sites={},
            dtype=run.dtype,
            share=Share(1, 2),
        )


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_cluster_writes_the_same_store(
    client: Any, sources: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    store = extracted(sources, tmp_path / "dask.zarr", client=client)
    assert same_tree(store, whole)
    few = extracted(sources, tmp_path / "few.zarr", rank=1, world_size=3)
    load = partial(actstore.load_model, str(sources[0]))
    run = actstore.extract(
        load, sources[1], few, model_name="tiny", corpus_name="words", shard_rows=8, client=client
    )
    assert run.state == "complete"
    assert same_tree(few, whole)


def test_what_cannot_go_to_a_cluster_is_refused(
    client: Any, sources: tuple[Path, Path], tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any
) -> None:
    with pytest.raises(ModelError, match="cannot go to the workers"):
        actstore.extract(
            tiny_gpt2, sources[1], tmp_path / "s", tokenizer=tiny_tokenizer, client=client
        )
    with pytest.raises(StoreError, match="give one of them"):
        extracted(sources, tmp_path / "s", client=client, rank=0, world_size=2)
    with pytest.raises(StoreError, match="in memory"):
        extracted(sources, MemoryStore(), client=client)  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()
