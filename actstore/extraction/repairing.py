"""`repair`: read every byte of a run, and compute again what is bad."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Literal

from actstore.corpus import Sampling
from actstore.errors import SamplingError, StoreError
from actstore.extraction.computing import fill
from actstore.extraction.job import check_versions, make_job
from actstore.extraction.planning import begin
from actstore.store import Run, open


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
    """Read every byte of a run and compute again the shards that are missing or bad.

    :func:`actstore.extract` with the same arguments mends what opening notices (missing and
    short files); this reads everything. Nothing that is whole is touched.

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
        The run's own metadata or its coordinates are damaged, which cannot be computed.
    """
    there = open(store)
    if run is None:
        names = list(there)
        if len(names) != 1:
            known = ", ".join("/".join(name) for name in names) or "none"
            raise StoreError(f"{there.location} holds {len(names)} runs; name one of: {known}")
        run = names[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        damaged = there[run]
    told = damaged.info()
    asked = dict(told["key"]["sampling"])
    if positions is not None:
        asked["positions"] = positions
    elif isinstance(asked["positions"], dict):
        raise SamplingError(
            f"{damaged.name} was sampled by the function {asked['positions']['function']}; pass it "
            "as positions="
        )
    first = next(iter(told["sites"]))
    job = make_job(
        model,
        corpus,
        sites=first,
        layers=None,
        positions=Sampling(**asked),
        dtype=told["dtype"],
        model_name=run[0],
        corpus_name=run[1],
        tokenizer=tokenizer,
        sampling={},
    )
    check_versions(damaged, job.info)
    check: Literal["exists", "full"] = "full"
    for wanted in damaged.stored.record.requests:
        job = replace(job, label=run, wanted=wanted)
        with begin(job, store, check=check, progress=progress) as writer:
            fill(writer, job.model, batch_tokens, progress)
        check = "exists"
    return open(store)[run]
