"""A long Gram that was interrupted goes on from its last checkpoint, and is never wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

from actstore.grams import gram
from actstore.grams.checkpoints import Checkpoints
from tests.grams.gram_fakes import MemoryRun, run_of, whole

ROOT = Path(__file__).parent.parent.parent
ROWS, SHARD, WIDTH = 24_000, 2_000, 30

CHILD = """
import sys, time
from zarr.storage import LocalStore
from actstore.grams import gram
from tests.grams.test_gram_resume import long_run

run = long_run(LocalStore(sys.argv[1]))
read = run.read

def slow(*arguments, **options):
    time.sleep(0.03)
    return read(*arguments, **options)

run.read = slow
gram(run, parts=3 if sys.argv[2] == "parts" else None, checkpoint=0.0)
"""


def long_run(store: Any, **options: Any) -> MemoryRun:
    return run_of(ROWS, WIDTH, 4, shard_rows=SHARD, store=store, **options)


def so_far(folder: Path) -> list[Path]:
    """Checkpoints that are whole."""
    return sorted(path.parents[2] for path in folder.glob("gram-*/so_far_*/header/c/0"))


class Stopped(Exception):
    """What ends a computation in the middle."""


def stopped(folder: Path, after: int, **options: Any) -> None:
    """Begin, and end after so many readings of a layer."""
    run = long_run(LocalStore(folder))
    read = run.read

    def counted(*arguments: Any, **keywords: Any) -> np.ndarray:
        if run.reads >= after:
            raise Stopped
        return read(*arguments, **keywords)

    run.read = counted  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        gram(run, checkpoint=0.0, **options)


@pytest.mark.fault
@pytest.mark.parametrize("way", ["whole", "parts"])
def test_a_killed_process_leaves_a_checkpoint_that_the_next_goes_on_from(
    tmp_path: Path, way: str
) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), way], cwd=ROOT)
    try:
        deadline = time.monotonic() + 240
        while not so_far(tmp_path):
            assert child.poll() is None, "ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        child.kill()
        child.wait()
    parts = 3 if way == "parts" else None
    rest, alone = long_run(LocalStore(tmp_path)), long_run(MemoryStore())
    found, expected = gram(rest, parts=parts), gram(alone, parts=parts)
    assert rest.reads < alone.reads - 4
    for ours, its in zip((found, *found.parts), (expected, *expected.parts), strict=True):
        assert ours.n == its.n
        np.testing.assert_array_equal(whole(ours), whole(its))
    assert not list(tmp_path.glob("gram-*/so_far_*"))
    again = long_run(LocalStore(tmp_path))
    np.testing.assert_array_equal(whole(gram(again, parts=parts)), whole(expected))
    assert again.reads == 0


@pytest.mark.fault
def test_a_checkpoint_is_of_its_rows_alone(tmp_path: Path) -> None:
    stopped(tmp_path, 60)
    assert so_far(tmp_path)
    for change in ({"seed": 1}, {"layers": 3}):
        other = run_of(ROWS, WIDTH, shard_rows=SHARD, store=LocalStore(tmp_path), **change)
        reads = run_of(ROWS, WIDTH, shard_rows=SHARD, store=MemoryStore(), **change)
        np.testing.assert_array_equal(whole(gram(other)), whole(gram(reads)))
        assert other.reads == reads.reads


@pytest.mark.fault
@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "header"])
def test_a_damaged_checkpoint_is_left_out(tmp_path: Path, damage: str) -> None:
    stopped(tmp_path, 60)
    (newest,) = so_far(tmp_path)
    chunk = next((newest / "moments_0_1_2").rglob("c/0/0"))
    data = bytearray(chunk.read_bytes())
    if damage == "changed":
        data[100] ^= 1
        chunk.write_bytes(data)
    elif damage == "cut":
        chunk.write_bytes(data[: len(data) // 2])
    elif damage == "missing":
        chunk.unlink()
    else:
        header = next((newest / "header").rglob("c/0"))
        header.write_bytes(header.read_bytes()[:-9] + b"123456789")
    run = long_run(LocalStore(tmp_path))
    with pytest.warns(UserWarning, match="a checkpoint of the Gram cannot be used"):
        found = gram(run)
    alone = long_run(MemoryStore())
    np.testing.assert_array_equal(whole(found), whole(gram(alone)))
    assert run.reads == alone.reads


@pytest.mark.fault
@pytest.mark.parametrize("lacking", ["header", "its bytes"])
def test_one_whose_writing_was_interrupted_does_not_count(tmp_path: Path, lacking: str) -> None:
    stopped(tmp_path, 60)
    (newest,) = so_far(tmp_path)
    if lacking == "header":
        del zarr.open_group(newest, mode="r+")["header"]
    else:
        next((newest / "header").rglob("c/0")).unlink()
    run, alone = long_run(LocalStore(tmp_path)), long_run(MemoryStore())
    np.testing.assert_array_equal(whole(gram(run)), whole(gram(alone)))
    assert run.reads == alone.reads


def test_short_work_keeps_none_and_long_work_few() -> None:
    written: list[int] = []
    run = long_run(MemoryStore())
    before = Checkpoints.write
    try:
        Checkpoints.write = lambda self, rows, *rest: written.append(rows)  # type: ignore[method-assign]
        gram(run)
        assert written == []
        gram(long_run(MemoryStore()), checkpoint=None)
        gram(run, checkpoint=0.0, cache=False)
        assert written == []
        gram(long_run(MemoryStore()), checkpoint=0.0)
        assert written == [4_000, 8_000, 12_000, 16_000, 20_000]
    finally:
        Checkpoints.write = before  # type: ignore[method-assign]
    paces = Checkpoints(run, {}, None, 300.0)  # type: ignore[arg-type]
    assert paces.batches(0, 0.0, 1e11) == 30
    assert paces.batches(30, 10.0, 1e11) == 120
    assert paces.batches(120, 240.0, 1e11) == 150
    assert paces.batches(3, 9_000.0, 1e11) == 1


def test_a_store_that_takes_no_checkpoint_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("actstore.grams.checkpoints.write_array", full)
    run = long_run(LocalStore(tmp_path))
    with pytest.warns(UserWarning, match="no checkpoint of the Gram can be kept: No space") as told:
        found = gram(run, checkpoint=0.0)
    assert len(told) == 1
    assert not list(tmp_path.glob("gram-*/so_far_*"))
    np.testing.assert_array_equal(whole(found), whole(gram(long_run(MemoryStore()))))
