"""What an extraction would take, told before it is begun."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from actstore.extraction.computing import ShardWork, batches, tokens_of_a_batch
from actstore.extraction.job import Job, make_job
from actstore.extraction.planning import open_run, write_plan
from actstore.store import Run, RunWriter, check_same_codec, free_room, holds, human_bytes
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.corpus import Sampling

_TIMED_BATCHES = 4


@dataclass(frozen=True)
class Forecast:
    """What an extraction would add to a store and take to run.

    Attributes
    ----------
    run : str
        ``model/corpus``.
    samples : int
        Rows of the run.
    shards : int
        Shards that are still to be computed.
    shard_rows : int
    nbytes, files : int
        What would be added on the disk: exact for a new run; for one that exists, its chunks.
        With a codec that compresses, `nbytes` is the most it can be.
    free_bytes : int or None
        What the disk has room for; None where that is not known.
    tokens : int
        Tokens, padding not counted, that would go through the model.
    memory_bytes : int
        About the most memory: weights, two shards of rows, and the buffers they are written from.
    seconds : float or None
        Estimate from a few batches that were run on this machine just now; None where none was.
    timed_batches : int
        How many.
    codec : str
        How the chunks would be stored, ``none`` or ``zstd``.
    """

    run: str
    samples: int
    shards: int
    shard_rows: int
    nbytes: int
    files: int
    free_bytes: int | None
    tokens: int
    memory_bytes: int
    seconds: float | None
    timed_batches: int
    codec: str = "none"

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it, as far as is known."""
        return self.free_bytes is None or self.nbytes <= self.free_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "fits": self.fits}

    def __str__(self) -> str:
        if not self.shards:
            return (
                f"{self.run}: complete, {count(self.samples, 'sample')}; nothing would be computed"
            )
        free = "unknown" if self.free_bytes is None else human_bytes(self.free_bytes)
        timed = f"from {count(self.timed_batches, 'batch')} timed just now"
        most = "" if self.codec == "none" else "at most "
        rows = [
            ("samples", f"{self.samples:,}"),
            ("shards to do", f"{self.shards:,} of {count(self.shard_rows, 'sample')} each"),
            ("on disk", f"{most}{self.nbytes:,} bytes ({human_bytes(self.nbytes)}), {free} free"),
            ("files", f"{self.files:,}"),
            ("memory", f"about {human_bytes(self.memory_bytes)}"),
            ("tokens", f"{self.tokens:,}"),
            (
                "time",
                "not estimated"
                if self.seconds is None
                else f"about {duration(self.seconds)}, {timed}",
            ),
        ]
        lines = [f"  {name:<14}{value}" for name, value in rows]
        if not self.fits:
            lines.append("  it does not fit: make room, or store fewer layers or a shorter dtype")
        return "\n".join([f"{self.run}: what extraction would take", *lines])


def plan_extraction(
    model: Any,
    corpus: Any,
    store: Any,
    *,
    sites: Sequence[str] | str = ("resid",),
    layers: Sequence[int] | int | slice | None = None,
    positions: str | Sampling | Any = "random",
    dtype: str = "auto",
    codec: str | None = None,
    model_name: str | None = None,
    corpus_name: str | None = None,
    tokenizer: Any = None,
    shard_rows: int | None = None,
    batch_tokens: int | None = None,
    progress: bool | None = None,
    timed: bool = True,
    **sampling: Any,
) -> Forecast:
    """Rows, bytes, files, memory and time of an extraction; `store` is not touched.

    The whole plan is made, in the system's temporary folder, so the figures for the disk are
    exact, unless chunks are to be compressed: then they are the most it can take. Time is
    extrapolated from a few batches, and as good as they are typical.

    Parameters
    ----------
    timed : bool
        Run some batches for an estimate of the time.
    model, corpus, store, sites, layers, positions, dtype, codec, model_name, corpus_name
        As for :func:`actstore.extract`.
    tokenizer, shard_rows, batch_tokens, progress, **sampling
        As for :func:`actstore.extract`.

    Raises
    ------
    ModelError, CorpusError, SamplingError, SiteError, KeyMismatchError
        As extraction would.
    """
    job = make_job(
        model,
        corpus,
        sites=sites,
        layers=layers,
        positions=positions,
        dtype=dtype,
        codec=codec,
        model_name=model_name,
        corpus_name=corpus_name,
        tokenizer=tokenizer,
        sampling=sampling,
    )
    existing = open_run(job, store)
    if existing is not None:
        record = existing.stored.record
        check_same_codec(existing.name, record.codec, job.codec)
        existing.check_key(job.key, job.dtype)
        if job.is_done(existing):
            return _nothing(job, existing, free_room(store))
        shard_rows, job = record.shard_rows, replace(job, codec=record.codec)
    with tempfile.TemporaryDirectory(prefix="actstore-plan-") as folder:
        place = Path(folder) / "s.zarr"
        writer = write_plan(job, place, shard_rows=shard_rows, progress=progress, dry=True)
        with writer:
            plan_sizes = {
                path.relative_to(place).as_posix(): path.stat().st_size
                for path in place.rglob("*")
                if path.is_file()
            }
            return _forecast(job, store, existing, writer, plan_sizes, batch_tokens, timed)


def _forecast(
    job: Job,
    store: Any,
    existing: Run | None,
    writer: RunWriter,
    plan_sizes: dict[str, int],
    batch_tokens: int | None,
    timed: bool,
) -> Forecast:
    batch_tokens = tokens_of_a_batch(job.model, batch_tokens)
    if existing is None:
        shared = ("zarr.json", f"{job.label[0]}/zarr.json")
        new = {key: size for key, size in plan_sizes.items() if key not in shared}
        new |= {key: plan_sizes[key] for key in shared if not holds(store, key)}
        extra_bytes, extra_files = sum(new.values()), len(new)
    else:
        writer.skip_committed(existing.stored.journal)
        extra_bytes = extra_files = 0
    pending = writer.pending()
    lengths: list[list[int]] = []
    tokens = 0
    for shard in pending:
        work = ShardWork.of(writer, shard, job.model.causal)
        tokens += sum(map(len, work.input_ids))
        lengths.append([len(ids) for ids in work.input_ids])
    seconds, n_timed = None, 0
    if timed and pending:
        work = ShardWork.of(writer, pending[len(pending) // 2], job.model.causal)
        rate, n_timed = _seconds_per_token(job, work, batch_tokens)
        seconds = rate * sum(_padded(one, batch_tokens) for one in lengths)
    return Forecast(
        run=writer.name,
        samples=writer.n_samples,
        shards=len(pending),
        shard_rows=writer.shard_rows,
        nbytes=writer.pending_bytes + writer.pending_journal[1] + extra_bytes,
        files=sum(writer.pending_chunks.values()) + writer.pending_journal[0] + extra_files,
        codec=writer.codec,
        free_bytes=free_room(store),
        tokens=tokens,
        memory_bytes=_resident() + _row_memory(job, writer),
        seconds=seconds,
        timed_batches=n_timed,
    )


def _seconds_per_token(job: Job, work: ShardWork, batch_tokens: int) -> tuple[float, int]:
    """Wall time of a padded token, from batches of all lengths of one shard; and how many."""
    every = work.batches(batch_tokens)
    step = max(len(every) // _TIMED_BATCHES, 1)
    chosen = every[step // 2 :: step][:_TIMED_BATCHES]
    work.capture(job.model, chosen[-1], job.wanted)  # what the first call sets up is not counted
    begin = time.perf_counter()
    for batch in chosen:
        work.capture(job.model, batch, job.wanted)
    elapsed = time.perf_counter() - begin
    tokens = sum(len(batch) * max(len(work.input_ids[b]) for b in batch) for batch in chosen)
    return elapsed / tokens, len(chosen)


def _padded(lengths: list[int], batch_tokens: int) -> int:
    return sum(len(batch) * lengths[batch[0]] for batch in batches(lengths, batch_tokens))


def _row_memory(job: Job, writer: RunWriter) -> int:
    """Two shards of rows, one computed and one written, and the chunks being encoded.

    A chunk that is compressed is held both ways.
    """
    chunks = 4 if writer.codec == "none" else 8
    itemsize = {torch.float16: 2, torch.float64: 8}.get(job.model.dtype, 4)
    widths = {site: job.model.sites[site].width for site in job.wanted}
    rows = sum(len(layers) * widths[site] for site, layers in job.wanted.items()) * itemsize
    return writer.shard_rows * (2 * rows + chunks * max(widths.values()) * itemsize)


def _resident() -> int:
    """Most memory this process has had: weights, libraries and what the timed batches took."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _nothing(job: Job, run: Run, free: int | None) -> Forecast:
    return Forecast(
        run=run.name,
        samples=run.n_samples,
        shards=0,
        shard_rows=run.stored.record.shard_rows,
        nbytes=0,
        files=0,
        codec=run.stored.record.codec,
        free_bytes=free,
        tokens=0,
        memory_bytes=_resident(),
        seconds=0.0,
        timed_batches=0,
    )


def duration(seconds: float) -> str:
    """``42 s``, ``7 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
