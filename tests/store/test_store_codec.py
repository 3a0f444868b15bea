"""Compressed chunks: the same rows, files that zarr itself would write, and every flip noticed."""

from __future__ import annotations

import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from store_fakes import Spec, fill, planned, resumed, tree, values
from zarr.storage import MemoryStore

import actstore
from actstore.errors import CorruptionError, KeyMismatchError, StoreError, StoreVersionError
from actstore.store import Share
from actstore.store.backend import backend_for
from actstore.store.codecs import compress, decompress_into, most_bytes
from actstore.store.dtypes import DTYPES
from actstore.store.encoding import chunk_bytes, encode
from actstore.store.record import digest
from actstore.store.verify import verify

RUN = "gpt2/wiki"

pytestmark = pytest.mark.filterwarnings("ignore:.* is damaged:UserWarning")


def both(path, **options):
    """The same run stored plainly and compressed."""
    runs = []
    for codec in ("none", "zstd"):
        fill(planned(path / codec, codec=codec, **options))
        runs.append(actstore.open(path / codec)["gpt2", "wiki"])
    return runs


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_rows_are_those_of_a_plain_run(dtype, tmp_path):
    plain, packed = both(tmp_path, dtype=dtype)
    assert packed.info()["codec"] == "zstd"
    assert packed.verify() == []
    rows = np.array([1, 17, 18, 31, 40, 49])
    for site, layers in plain.sites.items():
        np.testing.assert_array_equal(packed[site].values, plain[site].values)
        for part in (slice(3, 9), slice(30, 50), rows):
            for layer in layers:
                a, b = (run.isel(sample=part)[site] for run in (plain, packed))
                dim = plain.dim(site)
                np.testing.assert_array_equal(b.sel({dim: layer}), a.sel({dim: layer}))
    for size in (5, 16):
        for block in packed.row_blocks(size):
            for layer in (3, 0):
                np.testing.assert_array_equal(
                    packed.read("resid", layer, block), plain.read("resid", layer, block)
                )


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_files_are_those_that_zarr_writes(dtype, tmp_path):
    """xarray and zarr alone read them; written again by zarr they are the same bytes."""
    _, packed = both(tmp_path, dtype=dtype)
    path = tmp_path / "zstd"
    alone = xr.open_zarr(path, group=RUN, consolidated=False)
    again = tmp_path / "again"
    shutil.copytree(path, again)
    for site in packed.sites:
        raw = zarr.open_array(path / RUN / site, mode="r")
        assert [type(codec).__name__ for codec in raw.compressors] == ["ZstdCodec", "Crc32cCodec"]
        items = raw[:]
        np.testing.assert_array_equal(alone[site].values, items)
        before = tree(again / RUN / site)
        zarr.open_array(again / RUN / site, mode="r+")[:] = items
        assert before.items() <= tree(again / RUN / site).items()
    if dtype in ("float32", "float16"):
        np.testing.assert_array_equal(alone.resid, packed.resid)


def test_nothing_tells_of_the_codec_where_there_is_none(tmp_path):
    plain, packed = both(tmp_path)
    fill(planned(tmp_path / "default"))
    assert tree(tmp_path / "default") == tree(tmp_path / "none")
    told = [
        json.loads((tmp_path / codec / RUN / "zarr.json").read_bytes())["attributes"]["actstore"]
        for codec in ("none", "zstd")
    ]
    assert "codec" not in told[0]
    assert told[1]["codec"] == "zstd"
    assert plain.stored.record.identity() == packed.stored.record.identity()


@settings(max_examples=60, deadline=None)
@given(
    rows=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 40)),
        elements=st.floats(-60000, 60000, width=16),
    ),
    padding=st.integers(0, 3),
    dtype=st.sampled_from(list(DTYPES)),
)
def test_a_chunk_unpacks_to_the_plain_one_and_is_no_longer_than_is_said(rows, padding, dtype):
    stored, n = DTYPES[dtype], rows.shape[0] + padding
    plain, _ = encode(rows, n, stored, "none")
    packed, _ = encode(rows, n, stored, "zstd")
    out = np.empty(plain.size - 4, np.uint8)
    assert decompress_into(packed[:-4], out) is None
    np.testing.assert_array_equal(out, plain[:-4])
    assert packed.size <= chunk_bytes(n, rows.shape[1], stored, "zstd")


@pytest.mark.parametrize("n", [0, 1, 1000, 2**17, 2**17 + 1, 10**6])
def test_what_cannot_be_compressed_is_no_longer_than_is_said(n):
    data = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)
    assert len(compress(data)) <= most_bytes(n, "zstd") <= n * 1.005 + 64


@pytest.mark.parametrize("cuts", [[1], [0, 3], [3, 1, 0, 2]])
def test_resumed_equals_uninterrupted(cuts, tmp_path):
    fill(planned(tmp_path / "whole", codec="zstd"))
    writer = planned(tmp_path / "parts", codec="zstd")
    for shard in cuts:
        fill(writer, [shard])
        writer = resumed(tmp_path / "parts", codec="zstd")
    fill(writer)
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")


def test_shares_and_more_layers_end_in_the_same_bytes(tmp_path):
    fill(planned(tmp_path / "whole", codec="zstd"))
    planned(tmp_path / "shared", codec="zstd").close()
    for rank in (1, 0):
        fill(resumed(tmp_path / "shared", share=Share(rank, 2)))
    assert tree(tmp_path / "shared") == tree(tmp_path / "whole")
    fill(resumed(tmp_path / "shared", {"attn": [1]}))
    run = actstore.open(tmp_path / "shared")["gpt2", "wiki"]
    np.testing.assert_array_equal(run.attn.sel(block=1), values("attn", 1, 50, 6))
    last = zarr.open_array(tmp_path / "shared" / RUN / "attn", mode="r").compressors[0]
    assert type(last).__name__ == "ZstdCodec"


@pytest.mark.parametrize("stored", ["none", "zstd"])
def test_another_codec_is_refused_by_name_and_kept_where_nobody_asks(stored, tmp_path):
    other = "zstd" if stored == "none" else "none"
    fill(planned(tmp_path / "s", codec=stored), [2])
    with pytest.raises(
        KeyMismatchError, match=rf"is stored with codec '{stored}', asked for '{other}': leave"
    ):
        resumed(tmp_path / "s", codec=other)
    with pytest.raises(StoreError, match="codec 'gzip' asked for: choose one of none, zstd"):
        resumed(tmp_path / "s", codec="gzip")
    fill(resumed(tmp_path / "s"))
    fill(planned(tmp_path / "whole", codec=stored))
    assert tree(tmp_path / "s") == tree(tmp_path / "whole")


def test_unknown_codecs_are_refused(tmp_path):
    with pytest.raises(StoreError, match="codec 'lz4' asked for: choose one of none, zstd"):
        planned(tmp_path / "s", codec="lz4")
    fill(planned(tmp_path / "t", codec="zstd"))
    file = tmp_path / "t" / RUN / "zarr.json"
    group = json.loads(file.read_bytes())
    fields = group["attributes"]["actstore"]
    del fields["digest"]
    fields["codec"] = "zstd-2"
    fields["digest"] = digest(group["attributes"])
    file.write_text(json.dumps(group, indent=2))
    with pytest.raises(StoreVersionError, match=r"has codec 'zstd-2', .* reads none, zstd: use"):
        _ = actstore.open(tmp_path / "t")["gpt2", "wiki"]


@pytest.mark.fault
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_flip_is_listed_and_never_read_as_numbers(dtype, tmp_path):
    path = tmp_path / "s"
    fill(planned(path, codec="zstd", dtype=dtype))
    good = actstore.open(path)["gpt2", "wiki"].resid.values
    rng = np.random.default_rng(5)
    for name in ("resid/c.0.0.0", "resid/c.2.3.0"):
        file = path / RUN / name
        data = file.read_bytes()
        layer, shard = int(name[8]), int(name[10])
        begin = 16 * shard
        for at in {0, 4, 5, len(data) - 1, *rng.integers(0, len(data), 25).tolist()}:
            bad = bytearray(data)
            bad[at] ^= int(rng.integers(1, 256))
            file.write_bytes(bad)
            (problem,) = verify(backend_for(path), RUN)
            assert (problem.site, problem.layer, problem.shard) == ("resid", layer, shard)
            run = actstore.open(path)["gpt2", "wiki"]
            for part in (slice(begin, begin + 2), [begin + 1]):
                with pytest.raises(CorruptionError, match="checksum"):
                    run.isel(sample=part).resid[layer].compute()
            np.testing.assert_array_equal(run.resid[1], good[1])
        file.write_bytes(data[:-1])
        told = rf"has {len(data) - 1:,} bytes instead of {len(data):,}"
        with pytest.raises(CorruptionError, match=told):
            run.resid[layer].compute()
        file.unlink()
        with pytest.raises(CorruptionError, match="missing"):
            run.resid[layer].compute()
        file.write_bytes(data)
    assert verify(backend_for(path), RUN) == []


@pytest.mark.fault
def test_a_chunk_that_changes_while_it_is_held_is_noticed(tmp_path):
    """What a thread keeps is used only as long as the file is the one it was read from."""
    path = tmp_path / "s"
    fill(planned(path, codec="zstd"))
    run = actstore.open(path)["gpt2", "wiki"]
    first, second = run.row_blocks(8)[:2]
    run.read("resid", 1, first)
    np.testing.assert_array_equal(run.read("resid", 1, second), values("resid", 1, 50, 6)[8:16])
    shutil.copy(path / RUN / "resid/c.2.0.0", path / RUN / "resid/c.1.0.0")
    with pytest.raises(CorruptionError):
        run.read("resid", 1, second)
    np.testing.assert_array_equal(run.read("resid", 2, second), values("resid", 2, 50, 6)[8:16])


@pytest.mark.fault
def test_what_is_bad_is_computed_again_to_the_same_bytes(tmp_path):
    path = tmp_path / "s"
    fill(planned(path, codec="zstd"))
    whole = tree(path)
    (path / RUN / "resid/c.2.1.0").unlink()
    file = path / RUN / "wide/c.0.2.0"
    file.write_bytes(file.read_bytes()[:-5] + b"\0" + file.read_bytes()[-4:])
    file = path / RUN / "resid/zarr.json"
    file.write_bytes(file.read_bytes().replace(b"zstd", b"gzip"))
    with resumed(path, check="full") as writer:
        assert writer.pending() == [1, 2]
        fill(writer)
    assert tree(path) == whole


def test_many_threads_pickles_and_stores_in_memory(tmp_path):
    sites = {"resid": Spec("layer", 4, 6), "wide": Spec("block", 3, 10)}
    store = MemoryStore()
    for place in (tmp_path / "s", store):
        fill(planned(place, codec="zstd", sites=sites))
        run = actstore.open(place)["gpt2", "wiki"]
        jobs = [(s, i, b) for b in run.row_blocks(7) for s in run.sites for i in run.sites[s]]
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(run.read, *zip(*jobs, strict=True))
        for (site, layer, block), got in zip(jobs, found, strict=True):
            rows = values(site, layer, 50, sites[site].width)[block.rows]
            np.testing.assert_array_equal(got, rows)
    run = actstore.open(tmp_path / "s")["gpt2", "wiki"]
    run.resid[1].compute()
    copy = pickle.loads(pickle.dumps(run))  # noqa: S301
    np.testing.assert_array_equal(copy.resid[3], values("resid", 3, 50, 6))
