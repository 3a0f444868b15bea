"""More documents for a run: the grown run is made beside the old one, then takes its place.

The shards that the old run has whole are taken over byte for byte; the last one, where it was
partly filled, and all that follow are computed. Readers see the old run until the new one is
complete. An interruption leaves the run ``<corpus>.growing``, which the same call goes on with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from actstore.corpus import read_corpus
from actstore.errors import CorruptionError, KeyMismatchError, MissingStoreError, StoreError
from actstore.extraction.computing import fill
from actstore.extraction.job import Job, check_versions
from actstore.extraction.planning import begin
from actstore.store import Run, RunWriter, open
from actstore.wording import count

GROWING, REPLACED = ".growing", ".replaced"
_SAME = ("document", "sequence", "position", "token_id")


def continues(job: Job, run: Run) -> bool:
    """Whether the job's corpus is the run's with more documents behind it, all else the same."""
    key = {**job.key, "corpus": run.info()["key"].get("corpus")}
    if run.key_differences(key, job.dtype):
        return False
    n_before = int(run.info()["info"]["documents"])
    if job.corpus.survey.n_documents <= n_before:
        return False
    first = read_corpus(job.corpus, name=job.corpus.name, limit=n_before)
    return first.fingerprint() == key["corpus"]["fingerprint"]


def grow(job: Job, store: Any, run: Run, *, batch_tokens: int | None, progress: bool | None) -> Run:
    """Add the corpus's new documents to a complete run.

    Raises
    ------
    StoreError
        The run is unfinished or damaged.
    KeyMismatchError
        The libraries have other versions than those the run was made with.
    """
    if run.state != "complete":
        raise StoreError(
            f"{run.name} is {run.state}: complete it with the documents it was begun with, then "
            "append the others"
        )
    check_versions(run, job.info)
    model, corpus = job.label
    record = run.stored.record
    before = record.wanted()
    wanted = {
        site: sorted({*before.get(site, ()), *job.wanted.get(site, ())})
        for site in {**before, **job.wanted}
    }
    label = (model, corpus + GROWING)
    aside = replace(job, label=label, wanted=wanted, codec=record.codec)
    with begin(aside, store, shard_rows=record.shard_rows, progress=progress) as writer:
        _check_rows(run, writer)
        for shard in set(writer.pending()) & set(range(record.n_samples // record.shard_rows)):
            writer.adopt(shard, run.stored)
        fill(writer, job.model, batch_tokens, progress)
    there = open(store)
    there.rename(model, corpus, to=(model, corpus + REPLACED))
    finish_growing(job.label, store)
    return there[job.label]


def finish_growing(label: tuple[str, str], store: Any) -> None:
    """Put a grown run in its place, and remove the old one, where only that is left to do."""
    model, corpus = label
    try:
        there = open(store)
    except MissingStoreError:
        return
    grown, old = (model, corpus + GROWING), (model, corpus + REPLACED)
    if label not in there and old in there and grown in there:
        there.rename(*grown, to=label)
    if label in there and old in there:
        there.remove(*old)


def _check_rows(run: Run, writer: RunWriter) -> None:
    """The rows that are taken over must be those that the grown plan begins with."""
    if writer.shard_rows != run.stored.record.shard_rows:
        raise KeyMismatchError(
            f"{writer.name} was begun with shards of {count(writer.shard_rows, 'sample')}, "
            f"{run.name} has "
            f"{run.stored.record.shard_rows}: remove {writer.name} and append again"
        )
    n = run.stored.record.n_samples
    grown = writer.run.stored
    for name in _SAME:
        if not np.array_equal(grown.column(name)[:n], run.stored.column(name)):
            raise CorruptionError(
                f"{run.name}: its {name} is not what these documents give now; nothing was changed"
            )
