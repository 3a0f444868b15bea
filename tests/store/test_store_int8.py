"""int8: a scale a row, an error that is stated and kept, and nothing unwritten that reads."""

from __future__ import annotations

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
from actstore.store.dtypes import DTYPES, from_disk, to_disk

SITES = {"resid": Spec("layer", 4, 6), "wide": Spec("block", 3, 10)}


@settings(max_examples=80, deadline=None)
@given(
    rows=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 9)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32).map(
            lambda x: x if abs(x) > 1e-20 else 0.0
        ),
    )
)
def test_no_value_is_further_off_than_is_said(rows):
    items = np.empty((rows.shape[0], rows.shape[1] + 4), np.int8)
    to_disk(rows, DTYPES["int8"], items)
    back = np.empty_like(rows)
    from_disk(items, DTYPES["int8"], back)
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    assert np.all(np.abs(back - rows.astype(np.float64)) <= largest / 254 * (1 + 1e-5))
    again = np.empty_like(items)
    to_disk(back, DTYPES["int8"], again)
    np.testing.assert_array_equal(again[:, :-4], items[:, :-4])


def test_a_run_in_int8_reads_like_any_other(tmp_path):
    path = tmp_path / "s.zarr"
    fill(planned(path, dtype="int8", sites=SITES), [2])
    half = actstore.open(path)["gpt2", "wiki"]
    assert half.n_samples == 16
    alone = zarr.open_array(path / "gpt2/wiki/resid", mode="r")
    raw = alone[1]
    by_hand = raw[:, :-4] * np.ascontiguousarray(raw[:, -4:]).view("<f4")
    assert np.isnan(by_hand[:32]).all()
    np.testing.assert_array_equal(by_hand[32:48], half.resid.sel(layer=1))
    fill(resumed(path, dtype="int8"))
    fill(planned(tmp_path / "other.zarr", dtype="int8", sites=SITES))
    assert tree(path) == tree(tmp_path / "other.zarr")
    run = actstore.open(path)["gpt2", "wiki"]
    assert run.dtype == "int8"
    assert run.resid.dtype == np.float32
    assert run.resid.shape == (4, 50, 6)
    assert run.info()["dtype_error"] == "at most 1/254 of the largest magnitude in the row"
    assert run.verify() == []
    for site, width in (("resid", 6), ("wide", 10)):
        given_rows = values(site, 2, 50, width)
        error = np.abs(run[site][-1 if site == "wide" else 2].values - given_rows)
        assert np.all(error <= np.abs(given_rows).max(axis=1, keepdims=True) / 254 * (1 + 1e-5))
    some = run.isel(sample=[1, 17, 18, 49]).resid[0].values
    np.testing.assert_array_equal(some, run.resid[0].values[[1, 17, 18, 49]])
    whole = xr.open_zarr(path, group="gpt2/wiki", consolidated=False)
    assert whole.resid.attrs["actstore_dtype"] == "int8"


def test_a_row_of_zeros_stays_one():
    store = MemoryStore()
    writer = planned(store, 3, dtype="int8", sites={"resid": Spec("layer", 1, 2)},
                     wanted={"resid": [0]})  # fmt: skip
    with writer:
        writer.write(0, {"resid": np.array([[[0, 0], [-1, 0.5], [0, 3]]], np.float16)})
    got = actstore.open(store)["gpt2", "wiki"].resid[0].values
    np.testing.assert_allclose(got, [[0, 0], [-1, 0.5], [0, 3]], atol=1 / 254)
    run = actstore.open(store)["gpt2", "wiki"]
    with pytest.raises(ValueError, match="expected float32"):
        run.read("resid", 0, run.row_blocks(3)[0], np.empty((3, 2), np.int8))
