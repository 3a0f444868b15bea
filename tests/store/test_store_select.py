"""Selections equal NumPy's on the whole array, stay lazy, and keep whole groups together."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_fakes import coordinates, fill, planned, values
from zarr.storage import MemoryStore

import actstore
from actstore.errors import SelectionError, SiteError
from actstore.store.rows import Rows


@pytest.fixture(scope="module")
def run():
    store = MemoryStore()
    fill(planned(store))
    return actstore.open(store)["gpt2", "wiki"]


@pytest.fixture(scope="module")
def whole():
    return np.stack([values("resid", layer, 50, 6) for layer in range(4)])


choices = st.one_of(
    st.slices(50),
    st.lists(st.booleans(), min_size=50, max_size=50).map(np.array),
    st.sets(st.integers(0, 49)).map(sorted),
)


@settings(max_examples=60, deadline=None)
@given(first=choices, second=st.data())
def test_isel_of_isel_equals_numpy(run, whole, first, second):
    if isinstance(first, slice) and (first.step or 1) < 0:
        return
    narrow = run.isel(sample=first)
    expected = whole[:, np.arange(50)[first]]
    assert narrow.n_samples == expected.shape[1]
    again = sorted(second.draw(st.sets(st.integers(0, max(narrow.n_samples - 1, 0)))))
    if again and narrow.n_samples:
        narrow, expected = narrow.isel(sample=again), expected[:, again]
    np.testing.assert_array_equal(narrow.resid, expected)
    rows = [narrow.read("resid", 1, block) for block in narrow.row_blocks(5)]
    np.testing.assert_array_equal(np.concatenate(rows) if rows else np.empty((0, 6)), expected[1])


@settings(max_examples=40, deadline=None)
@given(
    layers=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    sample=st.one_of(st.slices(50), st.lists(st.integers(-50, 49), max_size=20)),
    feature=st.one_of(st.slices(6), st.lists(st.integers(0, 5), max_size=4)),
)
def test_lazy_array_takes_any_index(run, whole, layers, sample, feature):
    got = run.resid.isel(layer=layers, sample=sample, feature=feature)
    expected = whole[layers][:, sample][:, :, feature]
    np.testing.assert_array_equal(got, expected)


def test_sel_by_every_kind_of_label(run, whole):
    coords, _, _ = coordinates(50)
    token = coords["token"][11]
    cases = {
        "value": ({"token": token}, coords["token"] == token),
        "list": ({"token_id": [1, 5, 9]}, np.isin(coords["token_id"], [1, 5, 9])),
        "strings": (
            {"token": [token, coords["token"][3]]},
            np.isin(coords["token"], [token, coords["token"][3]]),
        ),
        "slice": (
            {"position": slice(2, 4)},
            (coords["position"] >= 2) & (coords["position"] <= 4),
        ),
        "open slice": ({"score": slice(None, 0.0)}, coords["score"] <= 0),
        "bool": ({"long": True}, coords["long"]),
        "two": (
            {"long": True, "position": slice(1, None)},
            coords["long"] & (coords["position"] >= 1),
        ),
    }
    for name, (choice, mask) in cases.items():
        narrow = run.sel(**choice)
        np.testing.assert_array_equal(narrow.samples.sequence, np.flatnonzero(mask), name)
        np.testing.assert_array_equal(narrow.resid, whole[:, mask], name)
    mask = run.samples.position > 3
    np.testing.assert_array_equal(run.isel(sample=mask).resid, whole[:, mask.values])


def test_sel_by_layer_and_site(run):
    assert run.sel(layer=[1, -1]).sites == {"resid": [1, 3], "wide": [0, 2]}
    assert run.sel(layer=slice(1, 2)).sites["resid"] == [1, 2]
    assert run.sel(site="wide", block=2).sites == {"wide": [2]}
    assert run.sel(layer=2).resid.layer.values.tolist() == [2]
    with pytest.raises(SiteError, match=r"layer 13 asked for, but gpt2/wiki has layers 0…3"):
        run.sel(layer=13)
    with pytest.raises(SiteError, match=r"block 1 asked for, but gpt2/wiki has blocks 0, 2"):
        run.sel(block=1)
    with pytest.raises(SiteError, match="site 'mlp' asked for, but gpt2/wiki has resid, wide"):
        run.sel(site="mlp")
    with pytest.raises(SiteError, match=r"layer 0 of resid asked for, but gpt2/wiki has 2 in view"):
        run.sel(layer=2).read("resid", 0, run.row_blocks(4)[0])


def test_bad_choices_are_refused_by_name(run):
    with pytest.raises(SelectionError, match=r"token='zzz' matches none of the 50 samples"):
        run.sel(token="zzz")
    with pytest.raises(
        SelectionError, match="coordinate 'colour' asked for, but gpt2/wiki has doc"
    ):
        run.sel(colour=1)
    with pytest.raises(SelectionError, match=r"sample 50 asked for, .* samples 0…49"):
        run.isel(sample=[3, 50])
    with pytest.raises(SelectionError, match="increasing order"):
        run.isel(sample=[3, 2])
    with pytest.raises(SelectionError, match=r"mask of shape \(3,\) for 50 samples"):
        run.isel(sample=np.array([True, False, True]))
    with pytest.raises(SelectionError, match="whole numbers"):
        run.isel(sample=[0.5])
    with pytest.raises(SelectionError, match="cannot be compared"):
        run.sel(token=slice(1, 2))
    with pytest.raises(SelectionError, match="samples have no labels"):
        run.sel(sample=3)
    with pytest.raises(AttributeError, match="no attribute or site 'mlp'"):
        _ = run.mlp


@settings(max_examples=40, deadline=None)
@given(fraction=st.floats(0.02, 0.98), seed=st.integers(0, 5))
def test_split_keeps_groups_whole(run, fraction, seed):
    rest, held = run.split(fraction, seed=seed)
    a, b = set(rest.samples.document.values), set(held.samples.document.values)
    assert not a & b
    assert rest.n_samples + held.n_samples == 50
    assert held.n_samples >= min(fraction * 50, 48)
    assert held.n_samples < fraction * 50 + 2
    again = run.split(fraction, seed=seed)[1]
    np.testing.assert_array_equal(held.samples.sequence, again.samples.sequence)


def test_split_says_what_it_needs(run):
    with pytest.raises(SelectionError, match=r"fraction 1\.5"):
        run.split(1.5)
    with pytest.raises(SelectionError, match="form 1 group"):
        run.sel(document=3).split(0.5)
    rest, held = run.split(0.3, by="sample")
    assert (rest.n_samples, held.n_samples) == (35, 15)
    one, other = (run.split(0.3, seed=s)[1].samples.sequence.values for s in (0, 1))
    assert not np.array_equal(one, other)


def test_keys_follow_the_numbers(run):
    assert run.key() == run.isel(sample=slice(0, 50)).key()
    others = [run.isel(sample=slice(0, 49)), run.sel(layer=1), run.isel(sample=[0, 2])]
    assert len({run.key(), *(other.key() for other in others)}) == 4
    assert run.key({"resid": [1]}) == run.sel(site="resid", layer=1).key()
    store = MemoryStore()
    fill(planned(store))
    assert actstore.open(store)["gpt2", "wiki"].key() == run.key()
    store = MemoryStore()
    fill(planned(store, dtype="float16"))
    assert actstore.open(store)["gpt2", "wiki"].key() != run.key()


def test_nothing_is_read_before_compute(run, monkeypatch):
    seen = []
    real = type(run.stored.reader).read
    monkeypatch.setattr(
        type(run.stored.reader), "read", lambda self, *a: (seen.append(a[:3]), real(self, *a))
    )
    lazy = run.sel(layer=2, position=slice(1, 3)).resid
    part = run.resid.sel(layer=3).isel(sample=slice(0, 10))
    assert seen == []
    part.compute()
    assert set(seen) == {("resid", 3, 0)}
    names = {key[0] if isinstance(key, tuple) else key for key in lazy.data.dask}
    again = {
        key[0] if isinstance(key, tuple) else key
        for key in run.sel(layer=2, position=slice(1, 3)).resid.data.dask
    }
    assert names == again


def test_lazy_arrays_compute_on_threads_and_on_other_processes(tmp_path):
    fill(planned(tmp_path / "s.zarr"))
    run = actstore.open(tmp_path / "s.zarr")["gpt2", "wiki"]
    with dask.config.set(scheduler="threads"):
        threads = run.resid.compute()
    with dask.config.set(scheduler="processes", num_workers=1):
        processes = run.resid.compute()
    np.testing.assert_array_equal(threads, processes)


def test_selecting_among_many_samples():
    """CASES 42: a boolean choice of a million samples, without touching an activation."""
    rows = Rows([(k, slice(k * 31744, min((k + 1) * 31744, 10**6))) for k in range(32)])
    mask = np.random.default_rng(0).random(10**6) < 0.3
    chosen = rows.take(np.flatnonzero(mask))
    assert len(chosen.pieces) == 32
    np.testing.assert_array_equal(chosen.numbers(), np.flatnonzero(mask))
