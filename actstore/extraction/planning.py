"""The plan of a run, on disk before the first forward pass; and who makes it."""

from __future__ import annotations

import time
from typing import Any, Literal

from actstore.corpus import PlanBlock, plan, token_strings
from actstore.errors import (
    ExistingRunError,
    LockedError,
    MissingRunError,
    MissingStoreError,
    SamplingError,
    StoreError,
)
from actstore.extraction.job import Job
from actstore.models import LanguageModel
from actstore.store import (
    Run,
    RunBuilder,
    RunWriter,
    Share,
    create_run,
    has_locks,
    open,
    resume_run,
)
from actstore.wording import count

PLAN_PATIENCE = 3600.0
"""Seconds that the other ranks wait for rank 0's plan in a store without locks."""


def open_run(job: Job, store: Any) -> Run | None:
    """The run of the job's name, if there is one, whatever its key."""
    try:
        return open(store)[job.label]
    except (MissingStoreError, MissingRunError):
        return None


def begin(
    job: Job,
    store: Any,
    *,
    shard_rows: int | None = None,
    share: Share | None = None,
    check: Literal["exists", "full"] = "exists",
    progress: bool | None = None,
) -> RunWriter:
    """A writer for what the run lacks; the plan is made first where there is none.

    Among several writers one makes the plan, under the run's lock, and the others wait for it.
    In a store without locks that one is rank 0.
    """
    deadline = time.monotonic() + PLAN_PATIENCE
    while True:
        writer = resume_run(
            store,
            *job.label,
            key=job.key,
            wanted=job.wanted,
            sites=job.model.sites,
            dtype=job.dtype,
            codec=job.codec,
            check=check,
            share=share,
        )
        if writer is not None:
            try:
                writer.check_room()
            except BaseException:
                writer.close()
                raise
            return writer
        if share is not None and share.rank and not has_locks(store):
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{share} waited an hour for rank 0 to plan {'/'.join(job.label)}, in vain: "
                    "start rank 0 too"
                )
            time.sleep(1.0)
            continue
        try:
            writer = write_plan(job, store, shard_rows=shard_rows, progress=progress)
        except (LockedError, ExistingRunError):
            # Another rank is planning, or just has.
            if share is None:
                raise
            time.sleep(0.1)
            continue
        if share is None:
            return writer
        writer.close()


def write_plan(
    job: Job,
    store: Any,
    *,
    shard_rows: int | None = None,
    progress: bool | None = None,
    dry: bool = False,
) -> RunWriter:
    """Write every sample's coordinates and the ids to be run; count what gave no sample.

    A dry plan is not refused where its rows would find no room.
    """
    skipped = truncated = 0
    with create_run(store, *job.label) as builder:
        for block in plan(job.corpus, job.model.tokenizer, job.sampling, progress=progress):
            _check_lengths(job.model, block)
            skipped += block.skipped
            truncated += block.truncated
            _append(builder, block, job.model.tokenizer)
        counts = {
            "documents": job.corpus.survey.n_documents,
            "documents_without_samples": skipped,
            "documents_truncated": truncated,
        }
        return builder.finish(
            key=job.key,
            info={**job.info, **counts},
            sites=job.model.sites,
            wanted=job.wanted,
            dtype=job.dtype,
            codec=job.codec or "none",
            shard_rows=shard_rows,
            reserve=not dry,
        )


def _append(builder: RunBuilder, block: PlanBlock, tokenizer: Any) -> None:
    coordinates = {
        "document": block.document,
        "position": block.position,
        "sequence": builder.n_sequences + block.sample_sequence,
        "token_id": block.token_id,
        "token": token_strings(tokenizer, block.token_id),
        "target_id": block.target_id,
        **block.metadata,
    }
    builder.append(coordinates, block.input_ids, block.sequence_document)


def _check_lengths(model: LanguageModel, block: PlanBlock) -> None:
    longest = max(map(len, block.input_ids), default=0)
    if model.max_length is not None and longest > model.max_length:
        at = next(n for n, ids in enumerate(block.input_ids) if len(ids) == longest)
        raise SamplingError(
            f"document {block.sequence_document[at]} has {count(longest, 'token')}, but "
            f"{model.name} has "
            f"positions for {model.max_length}; max_length={model.max_length} cuts it there, "
            "with overflow='window' into overlapping windows"
        )
