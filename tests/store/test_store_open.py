"""Opening: quick, without torch, with one clear line where it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_fakes import Spec, fill, planned, resumed, values
from zarr.storage import LocalStore, MemoryStore

import actstore
from actstore.errors import MissingRunError, SelectionError, StoreError, StoreVersionError
from actstore.store import create_run
from actstore.store.backend import LocalBackend
from actstore.store.layout import shard_rows


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("open") / "s.zarr"
    fill(planned(path))
    fill(planned(path, 1200, corpus="news", dtype="float16", shard_rows=None), [1])
    return path


def test_table_says_what_there_is(path):
    text = repr(actstore.open(path))
    assert text.splitlines() == [
        f"<actstore.Store {path}>",
        "model  corpus  sites        layers          samples  dtype       size  state",
        "gpt2   news    resid, wide  0…3; 0, 2  176 of 1,200  float16  90.1 kB  1 of 2 shards",
        "gpt2   wiki    resid, wide  0…3; 0, 2            50  float32  11.4 kB  complete",
    ]
    rows = actstore.open(path).table()
    assert [row["corpus"] for row in rows] == ["news", "wiki"]
    html = actstore.open(path)._repr_html_()
    assert '<td style="text-align:right">176 of 1,200</td>' in html
    run = actstore.open(path)["gpt2", "wiki"]
    assert repr(run).splitlines() == [
        "<actstore.Run gpt2/wiki>  50 samples, float32, 11.4 kB, complete",
        "  resid  layer 0…3, 6 features",
        "  wide  block 0, 2, 10 features",
        "  coordinates  document, position, token_id, token, sequence, score, long",
    ]
    assert "<table>" in run._repr_html_()
    assert "resid" in dir(run)


def test_opening_imports_neither_torch_nor_transformers(path):
    code = (
        "import sys; import actstore\n"
        f"run = actstore.open({str(path)!r})['gpt2', 'wiki']\n"
        "n = run.sel(layer=2, position=slice(0, 3)).resid.shape[1]\n"
        "assert n > 0 and len(run.row_blocks(10)) == 7\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_opening_and_choosing_a_layer_read_no_rows(path, monkeypatch):
    seen = []
    real = LocalBackend.get
    monkeypatch.setattr(LocalBackend, "get", lambda self, key: seen.append(key) or real(self, key))
    chosen = actstore.open(path)["gpt2", "wiki"].sel(layer=2)
    assert chosen.resid.shape == (1, 50, 6)
    assert "gpt2/wiki/zarr.json" in seen
    assert not [key for key in seen if "/resid/c." in key and "/journal/" not in key]


def test_what_is_not_a_store_is_refused_in_one_line(path, tmp_path):
    with pytest.raises(StoreError, match=r"nowhere does not exist$"):
        actstore.open(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").write_text("hello")
    with pytest.raises(StoreError, match=r"folder is not an actstore store: it has no zarr.json"):
        actstore.open(str(tmp_path / "folder"))
    with pytest.raises(StoreError, match=r"not an actstore store and not empty .*'notes.txt'"):
        create_run(tmp_path / "folder", "gpt2", "wiki")
    (tmp_path / "folder/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"')
    with pytest.raises(StoreError, match=r"its zarr\.json is not that of a Zarr v3 group"):
        actstore.open(tmp_path / "folder")
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    (tmp_path / "folder/zarr.json").write_text(json.dumps(group))
    with pytest.raises(StoreError, match="is a Zarr group, but not an actstore store"):
        actstore.open(tmp_path / "folder")
    group["attributes"] = {"actstore": {"format": 99}}
    (tmp_path / "folder/zarr.json").write_text(json.dumps(group))
    with pytest.raises(StoreVersionError, match=r"has format 99, and .* reads format 1"):
        actstore.open(tmp_path / "folder")
    with pytest.raises(StoreError, match="3 is not a store: give a path, a URL"):
        actstore.open(3)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="file is not an actstore store"):
        actstore.open(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be created in"):
        create_run(tmp_path / "file", "gpt2", "wiki")


def test_a_run_that_is_not_there(path):
    store = actstore.open(path)
    with pytest.raises(MissingRunError) as caught:
        _ = store["gpt2", "books"]
    assert str(caught.value) == f"{path} has no run gpt2/books; it has gpt2/news, gpt2/wiki"
    assert store.get(("gpt2", "books")) is None
    assert ("gpt2", "books") not in store
    with pytest.raises(StoreError, match="runs are chosen as"):
        _ = store["gpt2"]


@pytest.mark.parametrize("label", ["", "..", "a/b", ".hidden", "a b", "zarr.json", "x.partial"])
def test_labels_cannot_lead_outside(tmp_path, label):
    with pytest.raises(StoreError, match="cannot name a model"):
        create_run(tmp_path / "s.zarr", label, "wiki")
    with pytest.raises(StoreError, match="cannot name a corpus"):
        create_run(tmp_path / "s.zarr", "gpt2", label)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("name", ["layer", "a/b", "sequences", "", "cache", "two words"])
def test_coordinate_names_are_checked(name):
    builder = create_run(MemoryStore(), "gpt2", "wiki")
    coords = {"sequence": np.zeros(1, int), "position": np.zeros(1, int), name: np.zeros(1)}
    with pytest.raises(StoreError, match="cannot name a coordinate"):
        builder.append(coords, [np.zeros(2, np.int32)], np.zeros(1, int))


def test_plans_that_make_no_sense_are_refused():
    builder = create_run(MemoryStore(), "gpt2", "wiki")
    finish = {"key": {}, "info": {}, "sites": {"resid": Spec("layer", 2, 3)}}
    with pytest.raises(StoreError, match="no sample was planned"):
        builder.finish(**finish, wanted={"resid": [0]}, dtype="float32")
    ids, document = [np.zeros(2, np.int32)], np.zeros(1, int)
    good = {"sequence": np.zeros(1, int), "position": np.zeros(1, int), "label": np.array(["a"])}
    builder.append(good, ids, document)
    after = {**good, "sequence": np.ones(1, int)}
    with pytest.raises(StoreError, match="give the same names in the same order"):
        builder.append({k: after[k] for k in ("sequence", "position")}, ids, document)
    with pytest.raises(StoreError, match="coordinate 'label' got float64"):
        builder.append({**after, "label": np.zeros(1)}, ids, document)
    with pytest.raises(StoreError, match="dtype 'int4' cannot be stored: choose one of float32"):
        builder.finish(**finish, wanted={"resid": [0]}, dtype="int4")
    with pytest.raises(StoreError, match="a run's key must be plain JSON"):
        builder.finish(**{**finish, "key": {"x": {1}}}, wanted={"resid": [0]}, dtype="float32")


def test_every_kind_of_store(tmp_path):
    pytest.importorskip("obstore")
    from obstore.store import MemoryStore as Remote
    from zarr.storage import ObjectStore

    for place in (
        f"file://{tmp_path}/a.zarr",
        LocalStore(tmp_path / "b.zarr"),
        MemoryStore(),
        ObjectStore(Remote()),
    ):
        fill(planned(place), [0, 3])
        fill(resumed(place))
        run = actstore.open(place)["gpt2", "wiki"]
        np.testing.assert_array_equal(run.resid[1], values("resid", 1, 50, 6))
        assert run.verify() == []
        assert run.cache_group("gram") is None
        run.cache_group("gram", create=True).create_array("x", shape=(3,), dtype="f8")
        assert list(run.cache_group("gram")) == ["x"]
        run.cache_group("other", create=True)["x"] = np.zeros(1000)
        assert sorted(run.cache) == ["gram", "other"]
        assert run.cache["other"] > run.cache["gram"] > 0
        with pytest.raises(SelectionError, match="'grum' in the cache of gpt2/wiki; it has"):
            run.clear_cache("gram", "grum")
        held = run.cache
        assert run.clear_cache("gram") == held["gram"]
        assert run.cache == {"other": held["other"]}
        assert run.cache_group("gram") is None
        assert run.clear_cache() == held["other"]
        assert run.cache == {}
        assert run.clear_cache() == 0
        assert actstore.open(place).verify() == []


def test_opening_while_another_writer_renames_its_files(tmp_path, monkeypatch):
    """A partial file that is listed may be gone, or have its last name, when its size is asked."""
    place = tmp_path / "s.zarr"
    fill(planned(place))
    before = actstore.open(place)["gpt2", "wiki"]
    partial = place / "gpt2" / "wiki" / "resid" / "c.0.0.0.partial"
    partial.write_bytes(b"half")
    scandir = os.scandir

    class Listed(list):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    def listed(path):
        with scandir(path) as entries:
            found = Listed(entries)
        if any(entry.name == partial.name for entry in found):
            partial.unlink()  # as a rename does, between the list and the sizes
        return found

    monkeypatch.setattr(os, "scandir", listed)
    run = actstore.open(place)["gpt2", "wiki"]
    assert run.verify() == []
    assert run.nbytes == before.nbytes
    assert not partial.exists()


@pytest.mark.parametrize(
    ("n", "row_bytes", "expected"),
    [
        (1, 1152, 1),
        (1000, 1152, 1000),
        (9000, 1152, 1024),
        (60_000, 1152, 2048),
        (10**6, 1152, 31_744),
        (10**6, 8192 * 2, 4096),
        (10**7, 1152, 57_344),
        (10**6, 200_000, 1024),
    ],
)
def test_shards_are_about_a_thirtysecond_and_at_most_64_mb(n, row_bytes, expected):
    assert shard_rows(n, row_bytes) == expected
    assert shard_rows(n, row_bytes) * row_bytes <= 64 * 2**20 or expected == 1024


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 10**9),
    width=st.integers(1, 16_384),
    itemsize=st.sampled_from([1, 2, 4]),
)
def test_large_runs_have_at_most_a_file_per_64_mb(n, width, itemsize):
    """CASES 32: a layer's chunks are 32 or fewer, or hold as many rows as fit into 64 MB."""
    rows = shard_rows(n, width * itemsize)
    shards = -(-n // rows)
    assert 1 <= rows <= n
    assert rows % 1024 == 0 or rows == n
    row_bytes = width * itemsize
    if 1024 * row_bytes <= 64 * 2**20:
        assert rows * row_bytes <= 64 * 2**20
    # No more than 32 files a layer, beyond what 64 MB of whole units of 1,024 rows allow.
    unit = max(64 * 2**20 // row_bytes // 1024 * 1024, 1024)
    assert shards <= max(32, -(-n // unit))
    if n * row_bytes > 32 * 64 * 2**20 and row_bytes <= 1024:
        assert shards <= -(-n * row_bytes // (63 * 2**20))
