"""What is read is what was written, whatever the shape, the dtype and the order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from store_fakes import SITES, WANTED, Spec, coordinates, fill, planned, shard_arrays, values
from zarr.storage import MemoryStore

import actstore


def stored_values(site: str, layer: int, n: int, width: int, dtype: str) -> np.ndarray:
    exact = torch.from_numpy(values(site, layer, n, width)).to(getattr(torch, dtype))
    return (exact.float() if dtype == "bfloat16" else exact).numpy()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape_dtype_and_order_reads_back(data):
    n = data.draw(st.integers(1, 70), label="samples")
    width = data.draw(st.integers(1, 9), label="width")
    size = data.draw(st.integers(1, 4), label="layers")
    dtype = data.draw(st.sampled_from(["float32", "float16", "bfloat16"]), label="dtype")
    rows = data.draw(st.integers(1, 80), label="shard rows")
    layers = data.draw(st.sets(st.integers(0, size - 1), min_size=1), label="wanted")
    sites = {"resid": Spec("layer", size, width)}
    store = MemoryStore()
    writer = planned(
        store, n, dtype=dtype, shard_rows=rows, sites=sites, wanted={"resid": sorted(layers)}
    )
    fill(writer, data.draw(st.permutations(writer.pending()), label="order"))

    run = actstore.open(store)["gpt2", "wiki"]
    assert run.state == "complete"
    assert run.sites == {"resid": sorted(layers)}
    expected = np.stack([stored_values("resid", i, n, width, dtype) for i in sorted(layers)])
    got = run.resid
    assert got.dims == ("layer", "sample", "feature")
    assert got.dtype == expected.dtype == got.compute().dtype
    np.testing.assert_array_equal(got.compute(), expected)
    assert run.verify() == []


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_uncommitted_shards_are_never_in_view(data):
    n, rows = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    store = MemoryStore()
    writer = planned(store, n, shard_rows=rows)
    done = data.draw(st.sets(st.sampled_from(writer.pending())), label="committed")
    fill(writer, sorted(done))
    run = actstore.open(store)["gpt2", "wiki"]
    numbers = [i for i in range(n) if i // rows in done]
    assert run.n_samples == len(numbers)
    np.testing.assert_array_equal(run.samples.sequence, numbers)
    np.testing.assert_array_equal(run.resid[2], values("resid", 2, n, 6)[numbers])
    whole = -(-n // rows)
    shards = f"{whole} shard" if whole == 1 else f"{whole} shards"
    assert run.state == ("complete" if len(done) == whole else f"{len(done)} of {shards}")


def test_bfloat16_is_exact_and_rounds_to_nearest_even():
    """CASES 18: every bfloat16 value survives; others round as torch rounds them."""
    bits = np.arange(2**16, dtype=np.uint32) << 16
    every = bits.view(np.float32)
    every = every[np.isfinite(every)]
    halves = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    halves[:2048] = (halves[:2048] & 0xFFFF0000) | 0x8000
    some = halves.view(np.float32)
    some = some[np.isfinite(torch.from_numpy(some).to(torch.bfloat16).float().numpy())]
    given_values = np.concatenate([every, some])[:, None]
    store = MemoryStore()
    writer = planned(
        store,
        len(given_values),
        dtype="bfloat16",
        shard_rows=10_000,
        sites={"resid": Spec("layer", 1, 1)},
        wanted={"resid": [0]},
        step=10**6,
    )
    with writer:
        for shard in writer.pending():
            start, stop = writer._record.shard_range(shard)
            writer.write(shard, {"resid": given_values[None, start:stop]})
    run = actstore.open(store)["gpt2", "wiki"]
    expected = torch.from_numpy(given_values).to(torch.bfloat16).float().numpy()
    got = run.resid[0].values
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
    assert run.dtype == "bfloat16"
    assert run.resid.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_xarray_alone_reads_the_store(tmp_path, dtype):
    """Nothing of actstore is needed; what is not committed is NaN, never zero (CASES 27)."""
    path = tmp_path / "s.zarr"
    fill(planned(path, dtype=dtype), [0, 2])
    plain = xr.open_zarr(path, group="gpt2/wiki", consolidated=False)
    items = plain.resid.values
    if dtype == "bfloat16":
        items = (items.astype(np.uint32) << 16).view(np.float32)
        assert plain.resid.attrs["actstore_dtype"] == "bfloat16"
    expected = np.stack([stored_values("resid", i, 50, 6, dtype) for i in range(4)])
    np.testing.assert_array_equal(items[:, :16], expected[:, :16])
    np.testing.assert_array_equal(items[:, 32:48], expected[:, 32:48])
    assert np.isnan(items[:, 16:32]).all()
    assert np.isnan(items[:, 48:]).all()
    coords, _, _ = coordinates(50)
    assert set(coords) < set(plain.coords)
    for name, told in coords.items():
        np.testing.assert_array_equal(plain[name].values.astype(told.dtype), told)


def test_sites_of_different_width_stand_side_by_side():
    """CASES 35, and plain coordinates as in CASES 41."""
    store = MemoryStore()
    fill(planned(store, wanted={"resid": [0, 3], "wide": [0, 2], "final_norm": [0]}))
    run = actstore.open(store)["gpt2", "wiki"]
    both = run.to_dataset()
    assert both.resid.dims == ("layer", "sample", "feature")
    assert both.wide.dims == ("block", "sample", "wide_feature")
    assert both.final_norm.dims == ("final_norm_layer", "sample", "feature")
    assert run.final_norm.dims == ("layer", "sample", "feature")
    assert run.wide.dims == ("block", "sample", "feature")
    assert both.sizes["wide_feature"] == 10
    assert not any(isinstance(i, xr.core.indexes.PandasMultiIndex) for i in both.xindexes.values())
    np.testing.assert_array_equal(both.wide.sel(block=2), values("wide", 2, 50, 10))
    tree = actstore.open(store).to_datatree()
    np.testing.assert_array_equal(tree["gpt2/wiki/resid"].sel(layer=3), values("resid", 3, 50, 6))


def test_the_tail_is_kept_and_its_padding_never_read(tmp_path):
    """CASES 24: 50 rows in shards of 16 leave 2 rows in the last one."""
    fill(planned(tmp_path / "s.zarr"))
    run = actstore.open(tmp_path / "s.zarr")["gpt2", "wiki"]
    last = run.row_blocks(100)[-1]
    assert (last.shard, last.rows, last.out) == (3, slice(48, 50), slice(48, 50))
    np.testing.assert_array_equal(run.read("resid", 1, last), values("resid", 1, 50, 6)[48:])
    chunk = (tmp_path / "s.zarr/gpt2/wiki/resid/c.1.3.0").read_bytes()
    assert len(chunk) == 16 * 6 * 4 + 4
    assert np.isnan(np.frombuffer(chunk[2 * 24 : -4], "<f4")).all()


def test_plan_is_read_back(tmp_path):
    coords, ids, _ = coordinates(50)
    with planned(tmp_path / "s.zarr") as writer:
        sequence, position = writer.shard_samples(1)
        assert (sequence.dtype, position.dtype) == (np.int64, np.int32)
        np.testing.assert_array_equal(sequence, coords["sequence"][16:32])
        np.testing.assert_array_equal(position, coords["position"][16:32])
        for number, got in zip([3, 1, 49], writer.input_ids([3, 1, 49]), strict=True):
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, ids[number])
        fill(writer)
    run = actstore.open(tmp_path / "s.zarr")["gpt2", "wiki"]
    for name, told in coords.items():
        assert run.samples[name].dtype == told.dtype
        np.testing.assert_array_equal(run.samples[name], told)
    np.testing.assert_array_equal(run.input_ids([7])[0], ids[7])
    assert run.info()["key"]["sampling"] == {"seed": 0}
    assert run.info()["info"] == {"made": "up"}


def test_coordinates_stream_across_chunks(tmp_path, monkeypatch):
    """The plan is written in chunks however it is appended."""
    monkeypatch.setattr("actstore.store.builder.ITEM_CHUNK", 16)
    monkeypatch.setattr("actstore.store.sequences.ITEM_CHUNK", 16)
    coords, ids, _ = coordinates(50)
    fill(planned(tmp_path / "a.zarr", step=3))
    fill(planned(tmp_path / "b.zarr", step=50))
    for path in (tmp_path / "a.zarr", tmp_path / "b.zarr"):
        run = actstore.open(path)["gpt2", "wiki"]
        assert len(list((path / "gpt2/wiki/sequences/input_ids").glob("c.*"))) > 5
        for got, told in zip(run.input_ids(np.arange(50)), ids, strict=True):
            np.testing.assert_array_equal(got, told)
        np.testing.assert_array_equal(run.coordinate("score"), coords["score"])
        assert run.verify() == []


def test_row_blocks_cover_the_view_and_reuse_memory():
    """CASES 21: vectorised reads in the stored dtype, into memory that is used again."""
    store = MemoryStore()
    fill(planned(store, dtype="float16"))
    run = actstore.open(store)["gpt2", "wiki"].isel(sample=slice(5, 45))
    whole = np.full((40, 6), np.nan, np.float16)
    out = np.empty((7, 6), np.float16)
    for block in run.row_blocks(7):
        view = out[: block.out.stop - block.out.start]
        assert run.read("resid", 3, block, view) is view
        whole[block.out] = view
    np.testing.assert_array_equal(whole, values("resid", 3, 50, 6).astype(np.float16)[5:45])
    with pytest.raises(ValueError, match=r"out is float32 .* expected float16"):
        run.read("resid", 3, run.row_blocks(7)[0], np.empty((7, 6), np.float32))


def test_writing_a_committed_shard_again_changes_nothing(tmp_path):
    writer = planned(tmp_path / "s.zarr")
    with writer:
        writer.write(0, shard_arrays(writer, 0))
        other = {site: array + 1 for site, array in shard_arrays(writer, 0).items()}
        writer.write(0, other)
        run = writer.run
    np.testing.assert_array_equal(run.resid[0], values("resid", 0, 50, 6)[:16])


def test_layers_that_were_not_asked_for_take_no_room(tmp_path):
    fill(planned(tmp_path / "s.zarr", wanted={"resid": [2]}))
    names = {p.name for p in (tmp_path / "s.zarr/gpt2/wiki/resid").glob("c.*")}
    assert names == {f"c.2.{k}.0" for k in range(4)}
    assert sorted(SITES) != sorted(WANTED)
