"""A Gram comes back from disk as it was, and says so when it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from zarr.storage import LocalStore

from actstore.errors import CorruptionError, GramError
from actstore.grams import Gram, gram
from tests.grams.gram_fakes import MemoryRun, run_of, stream, whole


def test_saved_equals_loaded(tmp_path: Path) -> None:
    run = MemoryRun({"resid": stream(50, 5, 3), "attn": stream(50, 3, 2, seed=1)})
    kept = gram(run, sites=("resid", "attn"))
    kept.save(tmp_path / "a.gram")
    found = Gram.load(tmp_path / "a.gram")
    assert [p.name for p in tmp_path.iterdir()] == ["a.gram"]
    assert (found.n, found.columns, found.provenance) == (50, kept.columns, kept.provenance)
    for pair, block in kept.blocks.items():
        np.testing.assert_array_equal(found.blocks[pair], block)
    np.testing.assert_array_equal(whole(found), whole(kept))
    np.testing.assert_array_equal(whole(found + found), whole(kept + kept))


def test_what_is_not_a_gram_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(GramError, match="there is no such file"):
        Gram.load(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(GramError, match="text is not a Gram"):
        Gram.load(tmp_path / "text")
    with pytest.raises(GramError, match="cannot be written"):
        gram(run_of()).save(tmp_path / "nowhere" / "a.gram")


@pytest.mark.fault
def test_a_truncated_or_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.gram"
    gram(run_of(n=50, width=20)).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(GramError, match="is not a Gram"):
        Gram.load(path)
    for at in range(200, len(data) - 3000, len(data) // 9):
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        try:
            found = Gram.load(path)
        except (GramError, CorruptionError):
            continue
        np.testing.assert_array_equal(whole(found), whole(gram(run_of(n=50, width=20))))


def cached_run(folder: Path) -> MemoryRun:
    return run_of(n=40, store=LocalStore(folder))


def test_the_second_time_nothing_is_read(tmp_path: Path) -> None:
    first = gram(cached_run(tmp_path))
    again = cached_run(tmp_path)
    second = gram(again)
    assert again.reads == 0
    assert second.run is again
    np.testing.assert_array_equal(whole(first), whole(second))
    part = gram(again, layers=[0, 2])
    assert again.reads == 0
    assert part.layers == [0, 2]
    np.testing.assert_array_equal(part.cross(0, 2), first.cross(0, 2))
    gram(again, precision="float32")
    assert again.reads > 0


def test_other_rows_are_not_taken_for_these(tmp_path: Path) -> None:
    gram(cached_run(tmp_path))
    other = cached_run(tmp_path)
    other.arrays["resid"][1][3, 2] += 1
    assert gram(other).cross(1, 1)[2, 2] != gram(cached_run(tmp_path)).cross(1, 1)[2, 2]


@pytest.mark.fault
def test_a_damaged_cache_is_computed_again(tmp_path: Path) -> None:
    expected = whole(gram(cached_run(tmp_path)))
    chunk = next(p for p in tmp_path.rglob("c/*/0/0") if "moments" in str(p))
    data = bytearray(chunk.read_bytes())
    for damage in ("flip", "short", "gone"):
        if damage == "flip":
            data[7] ^= 4
            chunk.write_bytes(data)
        elif damage == "short":
            chunk.write_bytes(data[:9])
        else:
            chunk.unlink()
        run = cached_run(tmp_path)
        with pytest.warns(UserWarning, match="it is computed again"):
            found = gram(run)
        assert run.reads > 0
        np.testing.assert_array_equal(whole(found), expected)
        again = cached_run(tmp_path)
        np.testing.assert_array_equal(whole(gram(again)), expected)
        assert again.reads == 0


@pytest.mark.fault
def test_an_interrupted_write_does_not_count(tmp_path: Path) -> None:
    gram(cached_run(tmp_path))
    for part in tmp_path.rglob("header/c"):
        for chunk in part.rglob("*"):
            chunk.unlink()
    run = cached_run(tmp_path)
    with pytest.warns(UserWarning, match="header"):
        gram(run)
    assert run.reads > 0


def test_a_store_that_cannot_be_written_costs_only_a_warning(tmp_path: Path) -> None:
    run = run_of()

    def refuse(name: str, *, create: bool = False) -> None:
        if create:
            raise PermissionError("read-only file system")

    run.cache_group = refuse  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="could not be kept in the store: read-only"):
        found = gram(run)
    assert found.n == 60
