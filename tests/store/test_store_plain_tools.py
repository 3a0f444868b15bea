"""Other programs' ways with a store: their masks, their copies, their consolidated metadata."""

from __future__ import annotations

import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr
from store_fakes import coordinates, fill, planned, resumed, values
from zarr.storage import MemoryStore

import actstore
from actstore.errors import CorruptionError
from actstore.store.chunks import ChunkReader


@pytest.fixture
def run(tmp_path):
    fill(planned(tmp_path / "s.zarr"))
    return actstore.open(tmp_path / "s.zarr")["gpt2", "wiki"]


@pytest.fixture
def reads(monkeypatch):
    """(layer, shard, rows) of every read of a chunk."""
    seen = []
    real = ChunkReader.read

    def read(self, site, layer, shard, rows, out):
        seen.append((layer, shard, rows))
        real(self, site, layer, shard, rows, out)

    monkeypatch.setattr(ChunkReader, "read", read)
    return seen


@pytest.mark.parametrize(
    "kind",
    [
        lambda mask: mask,
        lambda mask: mask.tolist(),
        lambda mask: dask.array.from_array(mask, chunks=7),
        lambda mask: xr.DataArray(mask, dims="sample"),
        lambda mask: xr.DataArray(dask.array.from_array(mask, chunks=7), dims="sample"),
    ],
    ids=["numpy", "list", "dask", "xarray", "xarray of dask"],
)
def test_any_kind_of_mask_is_taken_and_nothing_is_read_before_compute(kind, run, reads):
    """CASES 42: and then only chunks that hold chosen rows are read."""
    document = coordinates(50)[0]["document"]
    mask = (document == 1) | (document == 20)  # of shards 0 and 2
    chosen = run.isel(sample=kind(mask))
    lazy = chosen.resid.sel(layer=2)
    assert isinstance(lazy.data, dask.array.Array)
    assert reads == []
    np.testing.assert_array_equal(lazy, values("resid", 2, 50, 6)[mask])
    assert {(layer, shard) for layer, shard, _ in reads} == {(2, 0), (2, 2)}


def test_a_dataset_is_written_by_xarray_as_it_is(run):
    """CASES 41."""
    copied = MemoryStore()
    run.to_dataset().to_zarr(copied, consolidated=False)
    back = xr.open_zarr(copied, consolidated=False)
    np.testing.assert_array_equal(back.resid.sel(layer=3), values("resid", 3, 50, 6))
    np.testing.assert_array_equal(back.token.values.astype(object), coordinates(50)[0]["token"])
    np.testing.assert_array_equal(back.document, coordinates(50)[0]["document"])


@pytest.mark.filterwarnings("ignore:.*onsolidated metadata is currently not part")
@pytest.mark.filterwarnings("ignore:.* is damaged:UserWarning")
@pytest.mark.filterwarnings("ignore:.* was not as it was left:UserWarning")
@pytest.mark.filterwarnings("ignore:.*had been written by another program:UserWarning")
@pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated:RuntimeWarning")
def test_metadata_that_somebody_consolidated_hides_no_run(run, tmp_path):
    """CASES 40: what is new is there at the next open, for us and as the format says to read it."""
    path = tmp_path / "s.zarr"
    zarr.consolidate_metadata(str(path))
    fill(planned(path, corpus="news"))
    assert set(actstore.open(path)) == {("gpt2", "wiki"), ("gpt2", "news")}
    for store in (xr.open_zarr(path, group="gpt2/news"), xr.open_datatree(path)["gpt2/news"]):
        np.testing.assert_array_equal(store.resid.sel(layer=1), values("resid", 1, 50, 6))
    news = actstore.open(path)["gpt2", "news"]
    np.testing.assert_array_equal(news.resid[1], values("resid", 1, 50, 6))
    fill(resumed(path, {"resid": [0, 1, 2, 3], "attn": [1]}))
    wiki = actstore.open(path)["gpt2", "wiki"]
    np.testing.assert_array_equal(wiki.attn.sel(block=1), values("attn", 1, 50, 6))
    for corpus in ("wiki", "news"):
        plain = xr.open_zarr(path, group=f"gpt2/{corpus}", consolidated=False)
        np.testing.assert_array_equal(plain.resid.sel(layer=1), values("resid", 1, 50, 6))


@pytest.mark.parametrize("layers", [2, [0, 3]])
def test_shuffled_minibatches_read_chunks_whole_and_one_after_the_other(layers, run, reads):
    """CASES 49: rows are shuffled in the buffer, not on the disk."""
    data = run.to_torch(layers=layers, batch_size=8, buffer=24, seed=1)
    order = [number for batch in data for number in batch["sample"].tolist()]
    assert order != sorted(order)
    for layer in np.atleast_1d(layers):
        mine = [(shard, rows) for at, shard, rows in reads if at == layer]
        opened = [s for k, (s, _) in enumerate(mine) if k == 0 or mine[k - 1][0] != s]
        assert sorted(opened) == [0, 1, 2, 3]  # none is come back to
        for shard, size in enumerate([16, 16, 16, 2]):
            parts = [rows for at, rows in mine if at == shard]
            assert all(isinstance(rows, slice) for rows in parts)
            ends = [0, *(rows.stop for rows in parts)]
            assert [rows.start for rows in parts] == ends[:-1]
            assert ends[-1] == size
        assert len(mine) <= 4 + 2  # chunks, and ends of buffers inside one


def test_a_record_that_xarray_has_written_over_costs_no_rows(run, tmp_path):
    """CASES 29: a variable put into a run's group resets the group's attributes."""
    path = tmp_path / "s.zarr"
    kept = sorted(p.name for p in (path / "gpt2/wiki/resid").iterdir())
    more = xr.Dataset({"norm": (("layer", "sample"), np.ones((4, 50)))})
    more.to_zarr(str(path), group="gpt2/wiki", mode="a", consolidated=False)
    with pytest.raises(CorruptionError, match=r"another program.*were not touched: restore.*rm"):
        actstore.open(path)["gpt2", "wiki"]
    assert list(actstore.open(path)) == [("gpt2", "wiki")]
    assert "damaged: metadata" in repr(actstore.open(path))
    (problem,) = actstore.open(path).verify()
    assert "the run's metadata (zarr.json) does not describe this run" in str(problem)
    for again in (lambda: planned(path), lambda: resumed(path)):
        with pytest.raises(CorruptionError, match="another program"):
            again()
    assert sorted(p.name for p in (path / "gpt2/wiki/resid").iterdir()) == kept
    actstore.open(path).remove("gpt2", "wiki")
    assert list(actstore.open(path)) == []
    fill(planned(path))
    assert actstore.open(path).verify() == []


def test_a_run_that_somebody_consolidated_is_told_to_be_repaired(run, tmp_path):
    path = tmp_path / "s.zarr"
    with pytest.warns(UserWarning, match="onsolidated"):
        zarr.consolidate_metadata(str(path), path="gpt2/wiki")
    with pytest.raises(CorruptionError, match="actstore repair writes it again as it was"):
        actstore.open(path)["gpt2", "wiki"]


def test_groups_of_other_programs_are_no_runs(run, tmp_path):
    path = tmp_path / "s.zarr"
    xr.Dataset({"norm": ("x", np.ones(3))}).to_zarr(
        str(path), group="notes", mode="a", consolidated=False
    )
    assert list(actstore.open(path)) == [("gpt2", "wiki")]
    assert actstore.open(path).verify() == []
