"""A store: the runs in it, by model and corpus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import xarray as xr
from zarr.abc.store import Store as ZarrStore

from actstore.errors import ActstoreError, MissingRunError, MissingStoreError, StoreError
from actstore.store.backend import Backend, backend_for, location
from actstore.store.caching import cache_sizes
from actstore.store.folders import check_root, explained, lock_run, prepare, remove_empty
from actstore.store.layout import JOURNAL, check_label, run_key
from actstore.store.record import load_record
from actstore.store.run import Run
from actstore.store.table import CACHE_COLUMN, COLUMNS, html_table, human_bytes, text_table
from actstore.store.verify import Problem, verify


def open(store: str | os.PathLike[str] | ZarrStore) -> Store:
    """Open a store for reading.

    Parameters
    ----------
    store : str, path or zarr.abc.store.Store
        Folder, URL, or any Zarr store. A URL such as ``s3://bucket/acts.zarr`` needs the extra
        ``cloud``, and takes who and where from the environment (``AWS_ACCESS_KEY_ID``,
        ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``).

    Raises
    ------
    MissingStoreError
        Nothing is there, or it is no actstore store.
    StoreVersionError
        It has another version of the format.
    """
    backend = backend_for(store)
    with explained(f"{location(backend)} cannot be opened", backend):
        data = backend.get("zarr.json")
        if data is None:
            root = backend.root
            if root is None:
                backend.sizes("")  # says so where there is no bucket either
            there = root is None or root.exists()
            raise MissingStoreError(
                f"{location(backend)} is not an actstore store: it has no zarr.json"
                if there
                else f"{location(backend)} does not exist"
            )
        check_root(backend, data)
    return Store(backend)


def verify_run(
    store: str | os.PathLike[str] | ZarrStore, model: str, corpus: str, *, whole: bool = False
) -> list[Problem]:
    """Every problem of one run, damaged beyond opening or not; every byte is checked.

    With `whole`, shards that were asked for and are not committed are problems too.
    """
    name = run_key(check_label("model", model), check_label("corpus", corpus))
    return verify(backend_for(store), name, whole=whole)


class Store(Mapping[tuple[str, str], Run]):
    """The runs of a store, by (model, corpus).

    What is listed is what is there at that moment: a run that another process has added is
    seen at once.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def location(self) -> str:
        """Where the store is."""
        return location(self._backend)

    def __getitem__(self, key: tuple[str, str] | str) -> Run:
        """The run of a model on a corpus: ``store["gpt2", "wiki"]`` or ``store["gpt2/wiki"]``."""
        if isinstance(key, str) and key.count("/") == 1:
            model, corpus = key.split("/")
            key = (model, corpus)
        if not (isinstance(key, tuple) and len(key) == 2):
            raise StoreError(f"{key!r} asked for, but runs are chosen as store['model', 'corpus']")
        name = run_key(check_label("model", key[0]), check_label("corpus", key[1]))
        with explained(f"{name} cannot be read", self._backend):
            if load_record(self._backend, name) is None:
                known = ", ".join("/".join(k) for k in self) or "no run"
                raise MissingRunError(f"{self.location} has no run {name}; it has {known}")
            return Run.load(self._backend, name)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for model in self._backend.folders(""):
            for corpus in self._backend.folders(model):
                try:
                    if load_record(self._backend, run_key(model, corpus)) is None:
                        continue
                except ActstoreError:
                    if JOURNAL not in self._backend.folders(run_key(model, corpus)):
                        continue  # a group of some other program's
                yield model, corpus

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return key in list(self)

    def table(self, *, cache: bool = False) -> list[dict[str, str]]:
        """One row of text a run: model, corpus, sites, layers, samples, dtype, size, state.

        With `cache`, the size, too, of what was computed from each; its files are gone through.
        """
        rows: list[dict[str, str]] = []
        for model, corpus in self:
            name = run_key(model, corpus)
            try:
                rows.append(Run.load(self._backend, name, warn=False).summary())
            except ActstoreError:
                if self._is_gone(name):
                    continue
                unknown = dict.fromkeys(COLUMNS, "") | {"model": model, "corpus": corpus}
                rows.append(unknown | {"state": "damaged: metadata"})
            if cache:
                held = sum(cache_sizes(self._backend, name).values())
                rows[-1][CACHE_COLUMN] = human_bytes(held) if held else ""
        return rows

    def verify(self, *, whole: bool = False) -> list[Problem]:
        """Every problem of every run, all at once; every byte on disk is checked.

        With `whole`, shards that were asked for and are not committed are problems too.
        """
        found = []
        for key in self:
            problems = verify(self._backend, run_key(*key), whole=whole)
            if not (problems and self._is_gone(run_key(*key))):
                found += problems
        return found

    def to_datatree(self) -> xr.DataTree:
        """Every run as a node ``/model/corpus`` of plain lazy xarray, committed rows only."""
        return xr.DataTree.from_dict({f"/{m}/{c}": self[m, c].to_dataset() for m, c in self})

    def remove(self, model: str, corpus: str) -> None:
        """Remove a run, or what an unfinished plan of it left, for good; and its model's last one
        takes the model's group along.

        Raises
        ------
        MissingRunError
            There is nothing of that name.
        LockedError
            It is being written.
        """
        name = run_key(check_label("model", model), check_label("corpus", corpus))
        if not self._backend.folders(name):
            self._existing(model, corpus)
        with explained(f"{name} cannot be removed", self._backend), lock_run(self._backend, name):
            # Without its record the run is gone for readers, whatever happens next.
            self._backend.delete(f"{name}/zarr.json")
            self._backend.sync_folder(name)
            self._backend.delete_tree(name)
        with explained(f"{model} cannot be removed", self._backend):
            remove_empty(self._backend, model)

    def rename(self, model: str, corpus: str, *, to: tuple[str, str]) -> None:
        """Give a run another model's or corpus's label; its keys and caches stay valid.

        Raises
        ------
        StoreError
            A run of the new name exists.
        LockedError
            The run is being written.
        """
        name = self._existing(model, corpus)
        target = run_key(check_label("model", to[0]), check_label("corpus", to[1]))
        backend = self._backend
        with (
            explained(f"{name} cannot be renamed to {target}", backend),
            lock_run(backend, name),
        ):
            if backend.get(f"{target}/zarr.json") is not None or backend.folders(target):
                raise StoreError(f"{self.location} has {target} already: remove it first")
            prepare(backend, to[0])
            backend.move_tree(name, target)
            prepare(backend, to[0])  # it may have lost its last other run since
            backend.sync_folder(to[0])
            remove_empty(backend, model)

    def __delitem__(self, key: tuple[str, str]) -> None:
        self.remove(*key)

    def __repr__(self) -> str:
        rows = self.table()
        if not rows:
            return f"<actstore.Store {self.location}>  no runs"
        return f"<actstore.Store {self.location}>\n{text_table(rows)}"

    def _repr_html_(self) -> str:
        return html_table(self.table())

    def _is_gone(self, name: str) -> bool:
        """Whether a run that was listed has been removed or renamed since."""
        return self._backend.get(f"{name}/zarr.json") is None

    def _existing(self, model: str, corpus: str) -> str:
        name = run_key(check_label("model", model), check_label("corpus", corpus))
        if (model, corpus) not in self:
            raise MissingRunError(f"{self.location} has no run {name}")
        return name
