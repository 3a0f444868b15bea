"""Interrupted, resumed, extended, locked: the store ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import time

import numpy as np
import pytest
import store_fakes
from hypothesis import given, settings
from hypothesis import strategies as st
from store_fakes import (
    KEY,
    coordinates,
    fill,
    planned,
    processes,
    resumed,
    shard_arrays,
    tree,
    values,
)
from zarr.storage import MemoryStore

import actstore
from actstore.errors import (
    KeyMismatchError,
    LockedError,
    MissingRunError,
    SiteError,
    StoreError,
)
from actstore.store import create_run

KILLS = int(os.environ.get("ACTSTORE_KILLS", "15"))


@pytest.mark.fault
def test_killed_at_random_moments_it_ends_in_the_same_store(tmp_path):
    """SIGKILL in planning, writing or committing; only whole shards are ever seen."""
    n = 300
    begin = time.perf_counter()
    store_fakes.complete(tmp_path / "whole.zarr", n)
    usual = time.perf_counter() - begin
    whole = tree(tmp_path / "whole.zarr")
    rng = np.random.default_rng(0)
    expected = values("resid", 2, n, 6)
    ready = processes().Event()
    seen = set()
    for kill in range(KILLS):
        path = tmp_path / f"{kill // 3}.zarr"
        ready.clear()
        child = processes().Process(target=store_fakes.complete, args=(path, n, ready))
        child.start()
        assert ready.wait(30)
        time.sleep(rng.uniform(0, usual))
        child.kill()
        child.join()
        runs = actstore.open(path).values() if (path / "zarr.json").exists() else ()
        for run in runs:
            numbers = run.samples.sequence.values
            np.testing.assert_array_equal(run.resid.sel(layer=2), expected[numbers])
            assert run.verify() == []
            seen.add(run.n_samples)
        if kill % 3 == 2:
            store_fakes.complete(path, n)
            assert tree(path) == whole
            shutil.rmtree(path)
    assert len(seen) > 2


@settings(max_examples=6, deadline=None)
@given(order=st.permutations([0, 1, 2, 3]), cuts=st.sets(st.integers(1, 3)))
def test_resumed_equals_uninterrupted(order, cuts, tmp_path_factory):
    """In any order, over any number of interruptions, down to the last byte."""
    path = tmp_path_factory.mktemp("resume")
    fill(planned(path / "whole.zarr"))
    writer = planned(path / "parts.zarr")
    for part in np.split(order, sorted(cuts)):
        fill(writer, part.tolist())
        writer = resumed(path / "parts.zarr")
        assert not set(part.tolist()) & set(writer.pending())
    assert writer.pending() == []
    writer.close()
    assert tree(path / "parts.zarr") == tree(path / "whole.zarr")


def test_unfinished_plan_is_no_run_and_is_cleared(tmp_path):
    path = tmp_path / "s.zarr"
    coords, ids, document = coordinates(50)
    builder = create_run(path, "gpt2", "wiki")
    builder.append(coords, ids, document)
    builder._lock.close()
    assert list(actstore.open(path)) == []
    assert resumed(path) is None
    assert not (path / "gpt2/wiki/document").exists()
    fill(planned(path))
    fill(planned(tmp_path / "other.zarr"))
    assert tree(path) == tree(tmp_path / "other.zarr")


def test_a_failing_plan_cleans_up_after_itself(tmp_path):
    path = tmp_path / "s.zarr"
    coords, ids, document = coordinates(50)
    wrong = {**coords, "position": coords["position"] + 9}
    with create_run(path, "gpt2", "wiki") as builder:
        builder.append(coords, ids, document)
        with pytest.raises(StoreError, match=r"sequences 0…49 .* brings 50…99"):
            builder.append(coords, ids, document)
    builder.close()
    begun = create_run(path, "gpt2", "wiki")
    with (
        pytest.raises(StoreError, match=r"position \d+ in sequence 0, which has"),
        begun as builder,
    ):
        builder.append(wrong, ids, document)
    assert not (path / "gpt2/wiki/zarr.json").exists()
    fill(planned(path))
    assert actstore.open(path)["gpt2", "wiki"].state == "complete"


def test_another_key_is_refused_saying_what_differs(tmp_path):
    fill(planned(tmp_path / "s.zarr"))
    other = {**KEY, "model": {"fingerprint": "xyz"}, "extra": 1}
    with pytest.raises(KeyMismatchError) as caught:
        resumed(tmp_path / "s.zarr", key=other, dtype="float16")
    for part in (
        "dtype is 'float32', asked for 'float16'",
        "extra is None, asked for 1",
        "model.fingerprint is 'abc', asked for 'xyz'",
    ):
        assert part in str(caught.value)
    run = actstore.open(tmp_path / "s.zarr")["gpt2", "wiki"]
    assert run.key_differences(KEY, "float32") == []


def test_second_writer_is_refused(tmp_path):
    """CASES 37, within a process and between two; a dead process holds nothing."""
    path = tmp_path / "s.zarr"
    writer = planned(path)
    with pytest.raises(LockedError, match=r"gpt2/wiki in .* is being written by another process"):
        resumed(path)
    with pytest.raises(LockedError):
        create_run(path, "gpt2", "wiki")
    with pytest.raises(LockedError):
        actstore.open(path).remove("gpt2", "wiki")
    child = processes().Process(target=store_fakes.complete, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == 1
    assert writer.pending() == [0, 1, 2, 3]
    fill(planned(path, corpus="news"))
    writer.close()

    ready = processes().Event()
    child = processes().Process(target=hold_lock, args=(path, ready))
    child.start()
    assert ready.wait(20)
    with pytest.raises(LockedError):
        resumed(path)
    child.kill()
    child.join()
    fill(resumed(path))
    assert actstore.open(path)["gpt2", "wiki"].state == "complete"


def hold_lock(path, ready):
    writer = resumed(path)
    ready.set()
    time.sleep(60)
    writer.close()


def test_more_layers_stay_invisible_until_they_cover_the_run(tmp_path):
    path = tmp_path / "s.zarr"
    fill(planned(path, wanted={"resid": [0, 1]}))
    before = actstore.open(path)["gpt2", "wiki"]
    writer = resumed(path, {"resid": [1, 3], "attn": [0, 1, 2]})
    assert writer.pending() == [0, 1, 2, 3]
    fill(writer, [0, 2])
    half = actstore.open(path)["gpt2", "wiki"]
    assert half.sites == {"resid": [0, 1]}
    assert half.n_samples == 50
    assert half.state == "complete; resid, attn 2 of 4 shards"
    assert half.key() == before.key()
    fill(resumed(path, {"resid": [1, 3], "attn": [0, 1, 2]}))
    whole = actstore.open(path)["gpt2", "wiki"]
    assert whole.sites == {"resid": [0, 1, 3], "attn": [0, 1, 2]}
    assert whole.state == "complete"
    assert whole.key({"resid": [0, 1]}) == before.key()
    np.testing.assert_array_equal(whole.attn.sel(block=1), values("attn", 1, 50, 6))
    np.testing.assert_array_equal(whole.resid.sel(layer=3), values("resid", 3, 50, 6))
    assert whole.verify() == []
    with pytest.raises(SiteError, match=r"layer 4 of resid asked for, but .* layers 0…3"):
        resumed(path, {"resid": [4]})


def test_fewer_layers_of_an_unfinished_run_can_be_completed_alone(tmp_path):
    path = tmp_path / "s.zarr"
    fill(planned(path), [1])
    fill(resumed(path, {"resid": [2]}))
    run = actstore.open(path)["gpt2", "wiki"]
    assert run.sites == {"resid": [2]}
    assert run.n_samples == 50
    fill(resumed(path))
    assert actstore.open(path)["gpt2", "wiki"].sites == {"resid": [0, 1, 2, 3], "wide": [0, 2]}


def test_nothing_is_pending_once_complete_and_nothing_changes(tmp_path):
    path = tmp_path / "s.zarr"
    fill(planned(path))
    before = tree(path)
    for wanted in (None, {"resid": [1]}):
        with resumed(path, wanted) as writer:
            assert writer.pending() == []
    assert tree(path) == before


def test_a_second_corpus_and_model_are_seen_at_once(tmp_path):
    """CASES 36 and 40."""
    path = tmp_path / "s.zarr"
    fill(planned(path))
    store = actstore.open(path)
    first = store["gpt2", "wiki"].resid
    fill(planned(path, 70, corpus="news"))
    fill(planned(path, 33, model="bert"))
    assert set(store) == {("gpt2", "wiki"), ("gpt2", "news"), ("bert", "wiki")}
    np.testing.assert_array_equal(first[1], values("resid", 1, 50, 6))
    np.testing.assert_array_equal(store["gpt2", "news"].resid[1], values("resid", 1, 70, 6))
    assert not any(
        "consolidated" in text.decode()
        for text in (p.read_bytes() for p in path.rglob("zarr.json"))
    )


def test_runs_are_removed_and_renamed(tmp_path):
    for place in (tmp_path / "s.zarr", MemoryStore()):
        fill(planned(place))
        fill(planned(place, corpus="news"))
        store = actstore.open(place)
        key = store["gpt2", "wiki"].key()
        store.rename("gpt2", "wiki", to=("gpt2-small", "wikipedia"))
        assert sorted(store) == [("gpt2", "news"), ("gpt2-small", "wikipedia")]
        renamed = store["gpt2-small", "wikipedia"]
        assert renamed.key() == key
        assert renamed.verify() == []
        np.testing.assert_array_equal(renamed.resid[1], values("resid", 1, 50, 6))
        with pytest.raises(StoreError, match="has gpt2/news already"):
            store.rename("gpt2-small", "wikipedia", to=("gpt2", "news"))
        del store["gpt2", "news"]
        assert list(store) == [("gpt2-small", "wikipedia")]
        with pytest.raises(MissingRunError, match="has no run gpt2/news"):
            store.remove("gpt2", "news")
        fill(planned(place, corpus="news"))
        assert len(store) == 2


def test_a_run_that_exists_is_not_begun_again(tmp_path):
    fill(planned(tmp_path / "s.zarr"))
    with pytest.raises(StoreError, match="gpt2/wiki exists in"):
        create_run(tmp_path / "s.zarr", "gpt2", "wiki")


def test_memory_stores_resume_too():
    store = MemoryStore()
    fill(planned(store), [3, 0])
    assert resumed(store).pending() == [1, 2]
    fill(resumed(store))
    np.testing.assert_array_equal(
        actstore.open(store)["gpt2", "wiki"].resid[3], values("resid", 3, 50, 6)
    )


def test_order_of_writes_survives_a_power_cut(tmp_path, monkeypatch):
    """Bytes before names, names before the journal: what is committed is on the disk."""
    writer = planned(tmp_path / "s.zarr")
    events = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        events.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_fsync(descriptor)

    def replace(source, target):
        events.append(("rename", str(target)))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with writer:
        writer.write(1, shard_arrays(writer, 1))
    base = f"{tmp_path}/s.zarr/gpt2/wiki"
    journal = [events.index(("rename", f"{base}/journal/{s}/c.0.1.0")) for s in ("resid", "wide")]
    for site, layers in writer.request.items():
        for layer in layers:
            chunk = f"{base}/{site}/c.{layer}.1.0"
            renamed = events.index(("rename", chunk))
            assert events.index(("fsync", f"{chunk}.partial")) < renamed
            assert renamed < events.index(("fsync", f"{base}/{site}")) < min(journal)
        told = events.index(("rename", f"{base}/journal/{site}/c.0.1.0"))
        assert events.index(("fsync", f"{base}/journal/{site}/c.0.1.0.partial")) < told
        assert ("fsync", f"{base}/journal/{site}") in events[told:]
