"""Workers of a cluster give the numbers that threads give, whatever becomes of a worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from zarr.storage import LocalStore, MemoryStore

from actstore.errors import NonFiniteError
from actstore.grams import gram, plan_gram
from actstore.grams.tiles import TiledGram
from tests.grams.gram_fakes import Block, MemoryRun, run_of, whole

distributed = pytest.importorskip("distributed")


class TellingRun(MemoryRun):
    """Says in a folder which process reads, and takes its time over it."""

    folder: Path
    pause = 0.0

    def read(
        self, site: str, layer: int, block: Block, out: np.ndarray | None = None
    ) -> np.ndarray:
        with open(self.folder / str(os.getpid()), "a") as file:
            file.write(f"{layer}\n")
        time.sleep(self.pause)
        return super().read(site, layer, block, out)


def telling_run(folder: Path, pause: float, **options: Any) -> TellingRun:
    plain = run_of(3_000, 8, 6, shard_rows=500)
    run = TellingRun(plain.arrays, shard_rows=500, **options)
    run.folder, run.pause = folder, pause
    folder.mkdir(exist_ok=True)
    return run


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two worker processes."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_workers_read_for_themselves_and_the_bar_ends(
    client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = telling_run(tmp_path / "seen", 0.0)
    found = gram(run, client=client, progress=True, parts=3)
    assert "gram: 100%" in capsys.readouterr().err
    pids = set(client.run(os.getpid).values())
    assert {int(path.name) for path in run.folder.iterdir()} == pids | {os.getpid()}
    expected = gram(run, parts=3)
    for ours, its in zip((found, *found.parts), (expected, *expected.parts), strict=True):
        np.testing.assert_array_equal(whole(ours), whole(its))
    quick = gram(run, client=client, precision="float32", progress=False)
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(whole(quick), whole(gram(run, precision="float32")))


def test_stretches_between_checkpoints_add_up(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actstore.grams.planning.BLOCK_ROWS", (256, 512))
    run = run_of(3_000, 8, 6, shard_rows=500, store=MemoryStore())
    found = gram(run, client=client, checkpoint=0.0)
    expected = whole(gram(run, cache=False))
    np.testing.assert_allclose(
        whole(found), expected, rtol=1e-12, atol=1e-13 * np.abs(expected).max()
    )


@pytest.mark.parametrize("passes", [True, False])
def test_what_is_larger_than_memory_is_written_by_the_workers(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    monkeypatch.setattr("actstore.grams.planning.BLOCK_ROWS", (16, 512))
    run = run_of(600, 12, 9, store=LocalStore(tmp_path))
    if passes:
        assert plan_gram(run, memory="150KB", workers=2, parts=3).passes > 1
    else:
        monkeypatch.setattr("actstore.grams.computing.physical_memory", lambda: 50_000)
    monkeypatch.setattr(TiledGram, "write", None)  # of this process, not of the workers'
    options = {"parts": 3, "memory": "150KB"} if passes else {}
    found = gram(run, client=client, **options)
    monkeypatch.undo()
    assert not isinstance(found.blocks, dict)
    expected = gram(run_of(600, 12, 9), cache=False, parts=options.get("parts"))
    scale = np.abs(whole(expected)).max()
    for ours, its in zip((found, *found.parts), (expected, *expected.parts), strict=True):
        np.testing.assert_allclose(whole(ours), whole(its), rtol=1e-12, atol=1e-13 * scale)


@pytest.mark.parametrize("memory", [None, "300KB"])
def test_some_pairs_on_workers(client: Any, memory: str | None, tmp_path: Path) -> None:
    run = run_of(500, 16, 7, shard_rows=128, store=LocalStore(tmp_path))
    found = gram(run, pairs="to_last", client=client, memory=memory, progress=False)
    assert isinstance(found.blocks, dict) == (memory is None)
    expected = gram(run_of(500, 16, 7, shard_rows=128), progress=False)
    assert set(found.blocks) == {(k, k) for k in range(7)} | {(k, 6) for k in range(6)}
    for i, j in found.blocks:
        np.testing.assert_allclose(found.cross(i, j), expected.cross(i, j), rtol=1e-10, atol=1e-8)


def test_an_error_of_a_worker_is_the_callers(client: Any) -> None:
    run = run_of(600, 8, 6)
    run.arrays["resid"][3][17, 2] = np.nan
    with pytest.raises(NonFiniteError, match="resid layer 3 has NaN or infinity in rows 17"):
        gram(run, client=client)


@pytest.mark.fault
def test_a_worker_killed_in_the_middle_changes_no_number(client: Any, tmp_path: Path) -> None:
    run = telling_run(tmp_path / "seen", 0.02)
    before = set(client.run(os.getpid).values())
    killed: list[int] = []

    def kill_the_first_that_reads() -> None:
        deadline = time.monotonic() + 240
        while not killed and time.monotonic() < deadline:
            for pid in before:
                seen = run.folder / str(pid)
                if seen.exists() and len(seen.read_text().split()) >= 3:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return
            time.sleep(0.005)

    watcher = Thread(target=kill_the_first_that_reads)
    watcher.start()
    found = gram(run, client=client)
    watcher.join()
    (lost,) = killed
    readers = {int(path.name) for path in run.folder.iterdir()} - {os.getpid()}
    assert lost in readers
    lost_reads = len((run.folder / str(lost)).read_text().split())
    alone = telling_run(tmp_path / "alone", 0.0)
    expected = gram(alone)
    assert 3 <= lost_reads < alone.reads
    np.testing.assert_array_equal(whole(found), whole(expected))
