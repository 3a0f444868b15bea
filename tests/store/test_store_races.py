"""Readers, openers and removers beside writers: what changes meanwhile is no damage."""

from __future__ import annotations

import shutil
import threading
import time

import pytest
from store_fakes import fill, planned, resumed, tree

import actstore
from actstore.errors import ExistingRunError, LockedError, MissingRunError
from actstore.store import Share, create_run, sharing
from actstore.store.backend import LocalBackend, backend_for
from actstore.store.journal import Journal
from actstore.store.record import load_record
from actstore.store.stored import StoredRun
from actstore.store.verify import verify


def test_the_other_ranks_wait_for_a_plan_however_long_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_PATIENCE", 0.1)
    path, begun = tmp_path / "s.zarr", threading.Event()

    def plan():
        builder = create_run(path, "gpt2", "wiki")
        begun.set()
        time.sleep(0.6)
        builder.close()

    planner = threading.Thread(target=plan)
    planner.start()
    begun.wait(10)
    try:
        assert resumed(path, share=Share(1, 2)) is None
        assert not planner.is_alive() or not (path / "gpt2/wiki/zarr.json").exists()
    finally:
        planner.join()
    with planned(path), pytest.raises(LockedError):
        resumed(path, share=Share(1, 2))


def test_a_writer_leaves_alone_what_is_being_computed_from_the_run(tmp_path):
    path = tmp_path / "s.zarr"
    fill(planned(path), [0, 1])
    own = path / "gpt2/wiki/resid/c.0.3.0.partial"
    other = path / "gpt2/wiki/cache/gram-x/xx/c.0.0.abc.partial"
    other.parent.mkdir(parents=True)
    for file in (own, other):
        file.write_bytes(b"half")
    resumed(path).close()
    assert not own.exists()
    assert other.exists()


def test_a_journal_file_that_vanishes_after_the_listing_is_not_damage(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    fill(planned(path))
    backend = backend_for(path)
    record = load_record(backend, "gpt2/wiki")
    listed = LocalBackend.sizes
    (path / "gpt2/wiki/journal/resid/c.0.1.0").unlink()
    monkeypatch.setattr(
        LocalBackend, "sizes", lambda self, key: {**listed(self, key), "c.0.1.0": 68}
    )
    journal = Journal(backend, record)
    assert journal.damaged == {}
    assert journal.committed("resid")[0].tolist() == [True, False, True, True]


def test_a_shard_that_is_recomputed_while_a_run_is_opened_is_not_damage(tmp_path, monkeypatch):
    """The journal is read before the chunks are listed, and both may change between."""
    path = tmp_path / "s.zarr"
    fill(planned(path))
    listed, mended = LocalBackend.sizes, []

    def sizes(self, key):
        if key == "gpt2/wiki/resid" and not mended:
            mended.append(True)
            (path / "gpt2/wiki/resid/c.1.2.0").unlink()
            resumed(path).close()
        return listed(self, key)

    monkeypatch.setattr(LocalBackend, "sizes", sizes)
    stored = StoredRun.load(backend_for(path), "gpt2/wiki")
    assert stored.problems == []
    assert stored.state == "3 of 4 shards"


def test_a_run_that_is_removed_while_the_store_is_listed_is_not_damage(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    fill(planned(path))
    fill(planned(path, corpus="news"))
    store = actstore.open(path)
    names = list(store)
    monkeypatch.setattr(type(store), "__iter__", lambda self: iter(names))
    shutil.rmtree(path / "gpt2/news")
    assert [(row["corpus"], row["state"]) for row in store.table()] == [("wiki", "complete")]
    assert store.verify() == []
    shutil.rmtree(path / "gpt2/wiki/resid")
    assert {problem.run for problem in store.verify()} == {"gpt2/wiki"}


def test_a_run_that_is_replaced_while_it_is_verified_is_verified_again(tmp_path, monkeypatch):
    path, other = tmp_path / "s.zarr", tmp_path / "o.zarr"
    fill(planned(path))
    fill(planned(other, n=30))
    read, swapped = LocalBackend.get, []

    def get(self, key):
        if key == "gpt2/wiki/resid/c.3.0.0" and not swapped:
            swapped.append(True)
            shutil.rmtree(path / "gpt2/wiki")
            shutil.copytree(other / "gpt2/wiki", path / "gpt2/wiki")
        return read(self, key)

    monkeypatch.setattr(LocalBackend, "get", get)
    assert verify(backend_for(path), "gpt2/wiki") == []
    assert swapped


def test_a_tree_is_removed_though_others_remove_parts_of_it(tmp_path, monkeypatch):
    folder = tmp_path / "s.zarr/gpt2/wiki"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    remove, calls = shutil.rmtree, []

    def rmtree(path):
        calls.append(path)
        if len(calls) == 1:
            raise FileNotFoundError(path)
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    backend_for(tmp_path / "s.zarr").delete_tree("gpt2/wiki")
    assert not folder.exists()


def test_the_last_run_of_a_model_takes_its_group_along(tmp_path):
    path = tmp_path / "s.zarr"
    for corpus in ("wiki", "news"):
        fill(planned(path, corpus=corpus))
    store = actstore.open(path)
    store.remove("gpt2", "news")
    assert (path / "gpt2/zarr.json").exists()
    store.rename("gpt2", "wiki", to=("small", "wiki"))
    assert not (path / "gpt2").exists()
    assert store.verify() == []
    store.remove("small", "wiki")
    assert [file.name for file in path.iterdir()] == ["zarr.json"]
    fill(planned(path))
    fill(planned(tmp_path / "t.zarr"))
    assert tree(path) == tree(tmp_path / "t.zarr")


def test_the_last_run_of_a_model_takes_its_group_along_in_any_store():
    from zarr.storage import MemoryStore

    place = MemoryStore()
    fill(planned(place))
    actstore.open(place).remove("gpt2", "wiki")
    assert list(place._store_dict) == ["zarr.json"]


@pytest.mark.fault
def test_runs_come_and_go_while_others_open_list_and_verify(tmp_path):
    path = tmp_path / "s.zarr"
    fill(planned(path, model="other"))
    wrong: list[object] = []
    end = time.monotonic() + 4.0

    def come_and_go(corpus):
        while time.monotonic() < end:
            try:
                fill(planned(path, 30, corpus=corpus))
                assert (path / "gpt2/zarr.json").exists()
                actstore.open(path).remove("gpt2", corpus)
            except (LockedError, ExistingRunError, MissingRunError):
                continue
            except BaseException as error:
                wrong.append(error)
                return

    def look():
        while time.monotonic() < end:
            try:
                store = actstore.open(path)
                wrong.extend(row for row in store.table() if "damaged" in row["state"])
                wrong.extend(store.verify())
            except BaseException as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=come_and_go, args=(c,)) for c in ("a", "b", "b")]
    threads += [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert actstore.open(path)["other", "wiki"].verify() == []


def test_a_resumed_run_that_is_being_removed_counts_as_none(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    fill(planned(path))
    told = sharing.FolderLock

    def gone(folder, *arguments, **options):
        shutil.rmtree(path / "gpt2", ignore_errors=True)
        return told(folder, *arguments, **options)

    monkeypatch.setattr(sharing, "FolderLock", gone)
    assert resumed(path, share=Share(0, 2)) is None
