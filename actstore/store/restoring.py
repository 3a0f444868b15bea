"""Metadata and coordinates of a damaged run, put back from a plan of it that was made anew.

Nothing is put back on trust: coordinates must have the bytes that the record tells of, and a
record the digest, or all the content, that the damaged one still tells of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actstore.errors import ActstoreError, CorruptionError
from actstore.store.arrays import add_request
from actstore.store.backend import Backend, backend_for, location, put_all
from actstore.store.columns import column_problem
from actstore.store.folders import commit_record, explained, lock_run, store_lock
from actstore.store.groups import ROOT_GROUP, check_format, parse_group
from actstore.store.layout import run_key
from actstore.store.record import Record, SiteLike, load_record

LAST_RESORT = "restore it from a copy, or remove the run and extract it again"


def restore_root(store: Any) -> bool:
    """Write a store's own ``zarr.json`` again where it is lost, if there is a sound run in it."""
    backend = backend_for(store)
    data = backend.get("zarr.json")
    if data is not None:
        try:
            parse_group(data, location(backend))
        except CorruptionError:
            pass
        else:
            return False
    if not _has_run(backend):
        return False
    with explained(f"{location(backend)} cannot be restored", backend), store_lock(backend):
        put_all(backend, {"zarr.json": ROOT_GROUP})
    return True


def told_by(store: Any, model: str, corpus: str) -> tuple[dict[str, Any], bool]:
    """What the record of a run says, and whether it is as it was written.

    Raises
    ------
    CorruptionError
        It is so damaged that it says nothing.
    StoreVersionError
        It is of another version.
    """
    backend, name = backend_for(store), run_key(model, corpus)
    data = backend.get(f"{name}/zarr.json") or b""
    try:
        fields = parse_group(data, name)["actstore"]
        check_format(fields, name)
    except (CorruptionError, KeyError):
        raise CorruptionError(
            f"{name}: the run's metadata (zarr.json) cannot be read, so what the run was made of "
            f"is not known: {LAST_RESORT}"
        ) from None
    try:
        return fields, Record.from_bytes(data, name) is not None
    except CorruptionError:
        return fields, False


def damaged_columns(store: Any, model: str, corpus: str) -> list[str]:
    """Coordinate arrays of a run whose bytes are not those that were written; all are read."""
    backend = backend_for(store)
    record = load_record(backend, run_key(model, corpus))
    return [] if record is None else _damaged(backend, record)


def extend_plan(
    plan: Any,
    model: str,
    corpus: str,
    sites: Mapping[str, SiteLike],
    requests: list[dict[str, list[int]]],
) -> None:
    """Add to a plan, made for the first of a run's requests, the others."""
    backend = backend_for(plan)
    record = load_record(backend, run_key(model, corpus))
    if record is None:
        return
    for request in requests[1:]:
        record = add_request(backend, record, sites, request)
    commit_record(backend, record)


def restore_record(store: Any, model: str, corpus: str, plan: Any) -> None:
    """Put a run's record back from a plan of the same run, if it proves to be that record.

    Raises
    ------
    CorruptionError
        It is another one.
    """
    backend, name = backend_for(store), run_key(model, corpus)
    fields, _ = told_by(store, model, corpus)
    made = load_record(backend_for(plan), name)
    info: dict[str, Any] = fields.get("info", {})
    for record in () if made is None else (made, replace(made, info=info)):
        there = json.loads(record.to_bytes())["attributes"]["actstore"]
        if there["digest"] == fields.get("digest"):
            break
        if {**there, "digest": None} == {**fields, "digest": None}:  # it was the digest itself
            break
    else:
        raise CorruptionError(
            f"{name}: the run's metadata (zarr.json) is damaged, and what model and text give now "
            f"does not prove to be what it was: {LAST_RESORT}"
        )
    with explained(f"{name} cannot be restored", backend), lock_run(backend, name):
        commit_record(backend, record)


def restore_columns(store: Any, model: str, corpus: str, plan: Any) -> list[str]:
    """Put damaged coordinate arrays back from a plan of the same run; their names.

    Raises
    ------
    CorruptionError
        The plan's array has other bytes than were written; nothing is put back then.
    LockedError
        The run is being written.
    """
    backend, made, name = backend_for(store), backend_for(plan), run_key(model, corpus)
    with explained(f"{name} cannot be restored", backend), lock_run(backend, name):
        record, again = load_record(backend, name), load_record(made, name)
        if record is None or again is None:
            return []
        damaged = _damaged(backend, record)
        other = [key for key in damaged if again.content.get(key) != record.content[key]]
        if other:
            raise CorruptionError(
                f"{name}: coordinate {', '.join(other)} is damaged, and model and text now give "
                "other bytes than were written (are zarr, numcodecs and the tokenizer's library "
                f"of the same version?): {LAST_RESORT}"
            )
        for key in damaged:
            put_all(
                backend,
                {
                    f"{name}/{key}/{file}": made.get(f"{name}/{key}/{file}") or b""
                    for file in made.sizes(f"{name}/{key}")
                },
            )
        backend.sync_folder(name)
    return damaged


def _damaged(backend: Backend, record: Record) -> list[str]:
    return [
        key
        for key, content in record.content.items()
        if column_problem(backend, f"{record.name}/{key}", content) is not None
    ]


def _has_run(backend: Backend) -> bool:
    for model in backend.folders(""):
        for corpus in backend.folders(model):
            try:
                if load_record(backend, run_key(model, corpus)) is not None:
                    return True
            except ActstoreError:
                continue
    return False
