"""What happens to the disk is noticed: every byte, all at once, and repaired where possible."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil

import numpy as np
import pytest
import store_fakes
from store_fakes import fill, planned, processes, resumed, shard_arrays, tree, values

import actstore
from actstore.errors import (
    ActstoreError,
    CorruptionError,
    DtypeOverflowError,
    NonFiniteError,
    StoreError,
)
from actstore.store import Problem
from actstore.store.backend import backend_for
from actstore.store.verify import verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* is damaged:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* left out until then:UserWarning"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "s.zarr"
    fill(planned(path))
    return path


@pytest.fixture
def store(written, tmp_path):
    shutil.copytree(written, tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def flip(path, at, mask=1):
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


@pytest.mark.fault
def test_missing_chunk_is_named_and_the_rest_still_reads(store):
    """CASES 27: a deleted chunk is an error that names its shard, never zeros."""
    (store / "gpt2/wiki/resid/c.2.1.0").unlink()
    with pytest.warns(UserWarning, match="gpt2/wiki is damaged"):
        run = actstore.open(store)["gpt2", "wiki"]
    assert run.state == "damaged: 1 problem"
    told = Problem("gpt2/wiki", "the chunk is missing", "resid", 2, 1, (16, 31))
    assert run.verify() == [told]
    with pytest.raises(CorruptionError, match=r"resid layer 2, shard 1 \(samples 16…31\): .* miss"):
        run.resid.sel(layer=2).compute()
    np.testing.assert_array_equal(run.resid.sel(layer=1), values("resid", 1, 50, 6))
    np.testing.assert_array_equal(run.resid[2, :16], values("resid", 2, 50, 6)[:16])
    assert "damaged: 1 problem" in repr(actstore.open(store))


@pytest.mark.fault
def test_flipped_byte_is_listed_and_reading_raises(store):
    """CASES 28."""
    flip(store / "gpt2/wiki/resid/c.0.3.0", 5)
    run = actstore.open(store)["gpt2", "wiki"]
    assert run.state == "complete"
    (problem,) = run.verify()
    assert (problem.site, problem.layer, problem.shard) == ("resid", 0, 3)
    assert str(problem).startswith("gpt2/wiki, resid 0, shard 3 (samples 48…49): the chunk's")
    for part in (slice(48, 50), slice(49, 50), [48]):
        with pytest.raises(CorruptionError, match="checksum"):
            run.isel(sample=part).resid[0].compute()


@pytest.mark.fault
def test_a_stale_chunk_with_a_right_checksum_is_noticed(store):
    """Zarr's own checksum holds, but it is not the chunk that was committed."""
    shutil.copy(store / "gpt2/wiki/resid/c.1.0.0", store / "gpt2/wiki/resid/c.2.0.0")
    run = actstore.open(store)["gpt2", "wiki"]
    assert [p.what for p in run.verify()] == ["the chunk's checksum is not the committed one"]
    with pytest.raises(CorruptionError):
        run.resid[2, :3].compute()


@pytest.mark.fault
def test_half_written_files_are_found_at_open_all_at_once(store):
    """CASES 33."""
    run_folder = store / "gpt2/wiki"
    (run_folder / "resid/c.0.0.0").write_bytes(b"")
    (run_folder / "wide/c.2.3.0").unlink()
    (run_folder / "token/c.0").unlink()
    os.truncate(run_folder / "resid/c.3.2.0", 100)
    run = actstore.open(store)["gpt2", "wiki"]
    assert run.state == "damaged: 4 problems"
    listed = [str(problem) for problem in run.stored.problems]
    assert listed == [
        "gpt2/wiki, resid 0, shard 0 (samples 0…15): the chunk has 0 bytes instead of 388",
        "gpt2/wiki, resid 3, shard 2 (samples 32…47): the chunk has 100 bytes instead of 388",
        "gpt2/wiki, wide 2, shard 3 (samples 48…49): the chunk is missing",
        "gpt2/wiki: coordinate token: c.0 missing",
    ]
    assert len(run.verify()) == 4
    np.testing.assert_array_equal(
        run.read("resid", 1, run.row_blocks(16)[0]), values("resid", 1, 50, 6)[:16]
    )
    with pytest.raises(CorruptionError, match="token"):
        run.coordinate("token")
    assert run.coordinate("document")[10] == 5


@pytest.mark.fault
def test_a_flip_anywhere_is_reported_and_never_read_as_numbers(written, store):
    """Chunks, coordinates, ids, metadata and journal: every file, several bytes of each."""
    run = actstore.open(written)["gpt2", "wiki"]
    good = {site: run[site].values for site in run.sites}
    coords = {name: run.coordinate(name) for name in run.samples.coords}
    backend = backend_for(store)
    rng = np.random.default_rng(3)
    for name, data in tree(written).items():
        for at in {0, len(data) - 1, *rng.integers(0, len(data), 2).tolist()}:
            flip(store / name, at, int(rng.integers(1, 256)))
            problems = verify(backend, "gpt2/wiki")
            assert problems, f"byte {at} of {name}"
            assert str(problems[0]).startswith("gpt2/wiki")
            try:
                damaged = actstore.open(store)["gpt2", "wiki"]
            except ActstoreError:
                damaged = None
            for site, told in good.items() if damaged is not None else ():
                with contextlib.suppress(CorruptionError):
                    numbers = damaged.coordinate("sequence")
                    got = damaged[site].values
                    np.testing.assert_array_equal(got, told[:, numbers])
            for column, told in coords.items() if damaged is not None else ():
                with contextlib.suppress(CorruptionError):
                    numbers = damaged.coordinate("sequence")
                    np.testing.assert_array_equal(damaged.coordinate(column), told[numbers])
            (store / name).write_bytes(data)
    assert verify(backend, "gpt2/wiki") == []


@pytest.mark.fault
def test_extracting_again_recomputes_only_what_is_bad(store, written):
    (store / "gpt2/wiki/resid/c.2.1.0").unlink()
    flip(store / "gpt2/wiki/wide/c.0.2.0", 7)
    flip(store / "gpt2/wiki/journal/resid/c.0.3.0", 3)
    flip(store / "gpt2/wiki/resid/zarr.json", 3)
    (store / "gpt2/zarr.json").unlink()
    with resumed(store, check="exists") as writer:
        assert writer.pending() == [1, 3]
    with resumed(store, check="full") as writer:
        assert writer.pending() == [1, 2, 3]
        untouched = (store / "gpt2/wiki/resid/c.0.1.0").stat().st_mtime_ns
        fill(writer)
    assert (store / "gpt2/wiki/resid/c.0.1.0").stat().st_mtime_ns == untouched
    assert tree(store) == tree(written)


@pytest.mark.fault
def test_damaged_coordinates_are_refused_by_whoever_has_no_text(store):
    (store / "gpt2/wiki/position/c.0").unlink()
    with pytest.raises(CorruptionError, match=r"position: c\.0 missing; actstore\.repair"):
        resumed(store)
    flip(store / "gpt2/wiki/zarr.json", 300)
    with pytest.raises(CorruptionError, match="gpt2/wiki"):
        _ = actstore.open(store)["gpt2", "wiki"]
    assert actstore.open(store).table()[0]["state"] == "damaged: metadata"
    actstore.open(store).remove("gpt2", "wiki")
    fill(planned(store))
    assert actstore.open(store)["gpt2", "wiki"].verify() == []


def limited(path, limit, out):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    writer = resumed(path)
    try:
        fill(writer)
    except StoreError as error:
        out.put(str(error))


@pytest.mark.fault
def test_a_failed_write_is_not_readable_and_resumes(tmp_path):
    """CASES 29: a real file-size limit in the middle of a run."""
    wide = {"resid": store_fakes.Spec("layer", 4, 6), "wide": store_fakes.Spec("block", 3, 200)}
    path = tmp_path / "s.zarr"
    fill(planned(path, sites=wide), [0])
    out = processes().Queue()
    child = processes().Process(target=limited, args=(path, 5000, out))
    child.start()
    message = out.get(timeout=30)
    child.join()
    assert "shard 1 of 4 of gpt2/wiki cannot be written: a file-size limit was reached" in message
    assert "The 1 committed of 4 shards are safe" in message
    assert "run the same call again to resume" in message
    run = actstore.open(path)["gpt2", "wiki"]
    assert run.n_samples == 16
    assert run.state == "1 of 4 shards"
    assert not [n for n in tree(path) if "c.0.1.0" in n or n.endswith(".partial")]
    fill(resumed(path))
    fill(planned(tmp_path / "other.zarr", sites=wide))
    assert tree(path) == tree(tmp_path / "other.zarr")


@pytest.mark.fault
def test_a_full_disk_says_so(tmp_path, monkeypatch):
    writer = planned(tmp_path / "s.zarr")
    with writer:
        writer.write(2, shard_arrays(writer, 2))

        def full(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"the disk is full \(.* MB free\).* The 1 committed"):
            writer.write(0, shard_arrays(writer, 0))
        monkeypatch.undo()
        assert writer.pending() == [0, 1, 3]
        assert writer.run.n_samples == 16
        fill(writer)
    assert actstore.open(tmp_path / "s.zarr")["gpt2", "wiki"].verify() == []


def test_non_finite_rows_are_refused_by_name(tmp_path):
    """CASES 12's store side: nothing of the shard is committed."""
    for dtype in ("float32", "float16"):
        writer = planned(tmp_path / f"{dtype}.zarr", dtype=dtype)
        arrays = {k: v.astype(dtype) for k, v in shard_arrays(writer, 1).items()}
        arrays["wide"][1, 3, 4] = np.nan
        arrays["wide"][1, 5, 0] = np.inf
        told = r"gpt2/wiki, wide block 2: NaN or infinity in 2 of 16 rows \(samples 19, 21\)"
        with writer, pytest.raises(NonFiniteError, match=told):
            writer.write(1, arrays)
        assert writer.pending() == [0, 1, 2, 3]
        assert not list((tmp_path / f"{dtype}.zarr/gpt2/wiki/resid").glob("c.*"))


@pytest.mark.parametrize(
    ("dtype", "fits", "too_big"),
    [("float16", 65519.99, 65520.0), ("bfloat16", 3.3895e38, 3.4e38)],
)
def test_overflow_is_an_error_that_names_the_value(tmp_path, dtype, fits, too_big):
    """CASES 17: never an infinity."""
    with planned(tmp_path / "s.zarr", dtype=dtype) as writer:
        arrays = shard_arrays(writer, 1)
        arrays["resid"][3, 2, 1] = -fits
        writer.write(1, arrays)
        assert np.isfinite(writer.run.resid.values).all()
        arrays = shard_arrays(writer, 0)
        arrays["resid"][3, 2, 1] = -too_big
        with pytest.raises(DtypeOverflowError) as caught:
            writer.write(0, arrays)
        assert f"gpt2/wiki, resid layer 3: {-np.float32(too_big):g} (sample 2, feature 1)" in str(
            caught.value
        )
        assert "instead" in str(caught.value)
        assert writer.pending() == [0, 2, 3]


def test_wrong_shapes_are_refused(tmp_path):
    with planned(tmp_path / "s.zarr") as writer:
        arrays = shard_arrays(writer, 0)
        with pytest.raises(StoreError, match=r"resid is float32 of shape \(4, 15, 6\), not .*16"):
            writer.write(0, {**arrays, "resid": arrays["resid"][:, :15]})
        with pytest.raises(StoreError, match=r"sites \['resid'\] given"):
            writer.write(0, {"resid": arrays["resid"]})
        with pytest.raises(StoreError, match=r"shard 4 asked for, .* shards 0…3"):
            writer.write(4, arrays)


def test_errors_are_builtins_too():
    assert issubclass(CorruptionError, OSError)
    assert issubclass(CorruptionError, ActstoreError)


@pytest.mark.fault
def test_a_damaged_coordinate_does_not_bar_the_rows(store):
    """Only who uses it gets the error; who reads rows is told, and gets them without it."""
    flip(store / "gpt2/wiki/token/c.0", 30)
    run = actstore.open(store)["gpt2", "wiki"]
    assert run.state == "complete"
    with pytest.warns(UserWarning, match="coordinate gpt2/wiki/token: .*; left out until then"):
        rows = run.resid
    np.testing.assert_array_equal(rows.sel(layer=1), values("resid", 1, 50, 6))
    assert "token" not in rows.coords
    assert {"document", "position", "score"} <= set(rows.coords)
    with pytest.warns(UserWarning, match="left out"):
        assert "token" not in run.to_dataset().coords
    narrowed = run.sel(document=3)
    np.testing.assert_array_equal(narrowed.coordinate("document"), [3, 3])
    for use in (
        lambda: run.samples,
        lambda: run.sel(token=" t3é"),
        lambda: run.coordinate("token"),
    ):
        with pytest.raises(CorruptionError, match="coordinate gpt2/wiki/token"):
            use()


@pytest.mark.fault
@pytest.mark.parametrize(
    "name", ["resid/zarr.json", "journal/wide/zarr.json", "sequences/zarr.json", "../zarr.json"]
)
def test_damaged_metadata_of_arrays_and_groups_shows_at_open(store, name):
    flip(store / "gpt2/wiki" / name, 9)
    run = actstore.open(store)["gpt2", "wiki"]
    assert run.state == "damaged: 1 problem"
    assert "zarr.json is not what was written" in str(run.stored.problems[0])
    np.testing.assert_array_equal(run.resid.sel(layer=1), values("resid", 1, 50, 6))
    with resumed(store) as writer:
        assert writer.pending() == []
        assert len(writer.mended) == 1
        assert writer.mended[0].endswith("zarr.json is written again")
    assert actstore.open(store)["gpt2", "wiki"].state == "complete"
    assert run.verify() == []


@pytest.mark.fault
def test_what_was_mended_is_told(store):
    (store / "gpt2/wiki/resid/c.2.1.0").unlink()
    (store / "gpt2/wiki/journal/resid/c.0.3.0").unlink()
    (store / "gpt2/zarr.json").unlink()
    with resumed(store) as writer:
        assert writer.mended == [
            "gpt2/zarr.json is written again",
            "shard 3 has chunks that are not in the journal (a writer was stopped, or it was lost)",
            "resid 2, shard 1 (samples 16…31): the chunk is missing",
        ]
        fill(writer)
    with resumed(store) as writer:
        assert writer.mended == []
