"""`repair`: read every byte of a run, and make again what is bad."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from actstore.corpus import Sampling
from actstore.errors import (
    ActstoreError,
    CorruptionError,
    SamplingError,
    StoreError,
)
from actstore.extraction.computing import fill
from actstore.extraction.job import Job, check_versions, make_job
from actstore.extraction.planning import begin, write_plan
from actstore.store import Run, open
from actstore.store.restoring import (
    LAST_RESORT,
    damaged_columns,
    extend_plan,
    restore_columns,
    restore_record,
    restore_root,
    told_by,
)
from actstore.wording import count


def repair(
    model: Any,
    corpus: Any,
    store: Any,
    *,
    run: tuple[str, str] | None = None,
    positions: Any = None,
    tokenizer: Any = None,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Read every byte of a run and make again what is missing or bad.

    Shards are computed; coordinates, token ids and metadata are planned again from model and text
    and put back where they prove to be what was written. :func:`actstore.extract` with the same
    arguments mends what opening notices (missing and short files); this reads everything.
    Nothing that is whole is touched.

    Parameters
    ----------
    model, corpus, tokenizer
        What the run was made from, as for :func:`actstore.extract`; checked by fingerprint.
    store : str, Path or zarr Store
    run : (model, corpus), optional
        The run's labels; not needed where the store has one run.
    positions : function, optional
        Only where the run's positions were chosen by a function, which a store cannot keep.
    batch_tokens : int, optional
        Tokens, padding included, of one forward pass; by default 1,024 on a CPU, where small
        batches stay in its caches, and 16,384 elsewhere. Rows are the same up to rounding.
    progress : bool, optional
        Show a progress bar on stderr; by default only on a terminal.

    Returns
    -------
    Run
        Whole again.

    Raises
    ------
    KeyMismatchError
        Model or corpus are not those the run was made from, or libraries have another version.
    CorruptionError
        The run's metadata says nothing any more; or metadata or a coordinate, made again, is not
        what was written. The message says which.
    """
    restore_root(store)
    there = open(store)
    if run is None:
        names = list(there)
        if len(names) != 1:
            known = ", ".join("/".join(name) for name in names) or "none"
            held = count(len(names), "run", "no")
            raise StoreError(f"{there.location} holds {held}; name one of: {known}")
        run = names[0]
    told, sound = told_by(store, *run)
    with _believed("/".join(run), sound):
        job = _job(model, corpus, tokenizer, positions, run, told)
        if not sound or damaged_columns(store, *run):
            _plan_again(job, store, told, sound, progress)
    damaged = _opened(store, run)
    check_versions(damaged, job.info)
    check: Literal["exists", "full"] = "full"
    for wanted in damaged.stored.record.requests:
        with begin(replace(job, wanted=wanted), store, check=check, progress=progress) as writer:
            fill(writer, job.model, batch_tokens, progress)
        check = "exists"
    return open(store)[run]


def _opened(store: Any, run: tuple[str, str]) -> Run:
    """The run, without a warning that it is damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return open(store)[run]


@contextmanager
def _believed(name: str, sound: bool) -> Iterator[None]:
    """Say, of whatever a damaged record leads to, that it comes of the damage."""
    try:
        yield
    except (ActstoreError, LookupError, TypeError, ValueError, AttributeError) as error:
        if sound or isinstance(error, StoreError):
            raise
        raise CorruptionError(
            f"{name}: the run's metadata (zarr.json) is damaged, and what it still says does not "
            f"go together with this model and text ({error}): {LAST_RESORT}"
        ) from error


def _job(
    model: Any,
    corpus: Any,
    tokenizer: Any,
    positions: Any,
    run: tuple[str, str],
    told: dict[str, Any],
) -> Job:
    """The job that made a run, by what its record tells."""
    asked = dict(told["key"]["sampling"])
    if positions is not None:
        asked["positions"] = positions
    elif isinstance(asked["positions"], dict):
        function = asked["positions"]["function"]
        raise SamplingError(
            f"{'/'.join(run)} was sampled by the function {function}; pass it as positions="
        )
    job = make_job(
        model,
        corpus,
        sites=next(iter(told["sites"])),
        layers=None,
        positions=Sampling(**asked),
        dtype=told["dtype"],
        model_name=run[0],
        corpus_name=run[1],
        tokenizer=tokenizer,
        sampling={},
    )
    return replace(job, label=run)


def _plan_again(
    job: Job, store: Any, told: dict[str, Any], sound: bool, progress: bool | None
) -> None:
    """Put back what follows from model and text alone: coordinates, token ids, the record."""
    requests = told["requests"]
    if sound:
        _opened(store, job.label).check_key(job.key, job.dtype)
    first = replace(job, wanted=requests[0], codec=told.get("codec"))
    with tempfile.TemporaryDirectory(prefix="actstore-plan-") as folder:
        plan = Path(folder) / "s.zarr"
        write_plan(first, plan, shard_rows=told["shard_rows"], progress=progress, dry=True).close()
        extend_plan(plan, *job.label, job.model.sites, requests)
        if not sound:
            restore_record(store, *job.label, plan)
        restore_columns(store, *job.label, plan)
