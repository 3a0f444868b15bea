"""Activations straight from the forward pass, for what needs no store: rows made as they are read.

``actstore.gram(model, corpus)`` is made of these.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from actstore.errors import GramError, SelectionError
from actstore.extraction.computing import Memory, ShardWork, tokens_of_a_batch
from actstore.extraction.job import Job, make_job
from actstore.extraction.planning import write_plan
from actstore.store import RunWriter
from actstore.store.dtypes import check_values, from_disk, stored_dtype, to_disk
from actstore.wording import count


@contextmanager
def forward_rows(
    model: Any,
    corpus: Any,
    *,
    sites: Sequence[str] | str = ("resid",),
    layers: Sequence[int] | int | slice | None = None,
    positions: Any = "random",
    dtype: str = "auto",
    tokenizer: Any = None,
    batch_tokens: int | None = None,
    shard_rows: int | None = None,
    model_name: str | None = None,
    corpus_name: str | None = None,
    folder: str | PathLike[str] | None = None,
    passes: int = 1,
    **sampling: Any,
) -> Iterator[ForwardRows]:
    """Rows that the model computes when they are read, equal to those that a store would hold.

    Nothing of the activations is put on disk: memory holds one shard of rows at a time. Samples
    and token ids are planned as for a store, in the system's temporary folder.

    Parameters
    ----------
    model, corpus, sites, layers, positions, dtype, tokenizer, batch_tokens, shard_rows
    model_name, corpus_name, **sampling
        As for :func:`actstore.extract`; values are rounded to `dtype` as a store rounds them.
    folder : str or Path, optional
        Where what is computed from the rows is kept, as a store keeps it beside a run; made where
        it is not there.
    passes : int
        How often the rows may be gone through.

    Yields
    ------
    ForwardRows
        Accepted by :func:`actstore.gram`, until the block ends.

    Raises
    ------
    ModelError, CorpusError, SamplingError, SiteError
        As extraction would.
    GramError
        `passes` is less than 1.
    """
    if passes < 1:
        raise GramError(f"passes={passes}: the model goes over the corpus at least once")
    job = make_job(
        model,
        corpus,
        sites=sites,
        layers=layers,
        positions=positions,
        dtype=dtype,
        model_name=model_name,
        corpus_name=corpus_name,
        tokenizer=tokenizer,
        sampling=sampling,
    )
    tokens = tokens_of_a_batch(job.model, batch_tokens)
    with tempfile.TemporaryDirectory(prefix="actstore-plan-") as place:
        plan = Path(place) / "s.zarr"
        with write_plan(job, plan, shard_rows=shard_rows, dry=True) as writer:
            if folder is None:
                yield ForwardRows(job, writer, tokens, passes)
            else:
                yield KeptForwardRows(job, writer, tokens, passes, Path(folder))


@dataclass(frozen=True)
class ForwardBlock:
    """Some rows of one shard: where they stand in it, and among all rows."""

    shard: int
    rows: slice
    out: slice


class ForwardRows:
    """Rows that are computed shard by shard as they are read; made by `forward_rows`.

    Attributes
    ----------
    sequential : bool
        Rows are best read once, in order, all layers of a block together: a reader that comes
        back to an earlier shard has it computed again.
    passes : int
        How often they may be gone through.
    """

    sequential = True

    def __init__(self, job: Job, writer: RunWriter, batch_tokens: int, passes: int = 1) -> None:
        self.passes = passes
        self._job = job
        self._writer = writer
        self._batch_tokens = batch_tokens
        self._dtype = stored_dtype(job.dtype)
        self._lock = threading.Lock()
        self._memory = Memory()
        self._held: tuple[int, dict[str, np.ndarray]] | None = None
        self.model, self.corpus = job.label
        self.sites = {site: list(layers) for site, layers in job.wanted.items()}
        self.n_samples = writer.n_samples
        self.shards_computed = 0

    def __repr__(self) -> str:
        rows = count(self.n_samples, "row")
        return f"<ForwardRows {self._writer.name}: {', '.join(self.sites)}, {rows}>"

    @property
    def dtype(self) -> str:
        """Number format that values are rounded to."""
        return self._job.dtype

    @property
    def held_bytes(self) -> int:
        """Bytes of the shard that memory holds."""
        widths = sum(self.width(site) * len(layers) for site, layers in self.sites.items())
        return widths * self._writer.shard_rows * self._job.model.row_dtype.itemsize

    def width(self, site: str) -> int:
        """Features of a site's rows."""
        return int(self._job.model.sites[site].width)

    def coordinate(self, name: str) -> np.ndarray:
        """(n_samples,) values of a sample coordinate of the plan."""
        stored = self._writer.run.stored
        if name not in stored.record.columns:
            raise SelectionError(
                f"coordinate {name!r} asked for, but {self._writer.name} has "
                f"{', '.join(stored.record.columns)}"
            )
        return np.asarray(stored.column(name))

    def row_blocks(self, max_rows: int) -> list[ForwardBlock]:
        """All rows in order, cut in blocks of at most `max_rows`, none across two shards."""
        blocks = []
        for shard in range(self._writer.n_shards):
            first, size = shard * self._writer.shard_rows, self._writer.shard_size(shard)
            for start in range(0, size, max_rows):
                stop = min(start + max_rows, size)
                blocks.append(
                    ForwardBlock(shard, slice(start, stop), slice(first + start, first + stop))
                )
        return blocks

    def read(
        self, site: str, layer: int, block: ForwardBlock, out: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows, width) of one block, as reading a store would give it.

        Raises
        ------
        NonFiniteError, DtypeOverflowError
            A value that a store would refuse.
        """
        with self._lock:
            if self._held is None or self._held[0] != block.shard:
                self._held = None
                self._held = block.shard, self._compute(block.shard)
            arrays = self._held[1]
            number = self._job.wanted[site].index(layer)
            values = arrays[site][number, block.rows]
            where = f"{self._writer.name}: {site} layer {layer}"
            check_values(values, self._dtype, where, block.out.start)
            items = np.empty((len(values), self.width(site) + self._dtype.extra), self._dtype.disk)
            to_disk(values, self._dtype, items)
            if out is None:
                out = np.empty(values.shape, self._dtype.memory)
            from_disk(items, self._dtype, out)
        return out

    def key(self, sites: Mapping[str, Sequence[int]] | None = None) -> str:
        """Digest of what determines the numbers: model, corpus, sampling, sites and dtype."""
        chosen = {site: list(layers) for site, layers in (sites or self.sites).items()}
        text = json.dumps(["forward", self._job.key, self._job.dtype, chosen], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def info(self) -> dict[str, Any]:
        """Provenance."""
        return {"key": self._job.key, "info": self._job.info, "stored": False}

    def _compute(self, shard: int) -> dict[str, np.ndarray]:
        work = ShardWork.of(self._writer, shard, self._job.model.causal)
        self.shards_computed += 1
        return work.compute(
            self._job.model, self._job.wanted, self._batch_tokens, self._memory, lambda _: None
        )


class KeptForwardRows(ForwardRows):
    """Rows from the forward pass, with a folder for what is computed from them."""

    def __init__(
        self, job: Job, writer: RunWriter, batch_tokens: int, passes: int, folder: Path
    ) -> None:
        super().__init__(job, writer, batch_tokens, passes)
        self._folder = folder

    def cache_group(self, name: str, *, create: bool = False) -> zarr.Group | None:
        """A Zarr group in the folder; None where there is none and `create` is False.

        Raises
        ------
        GramError
            It cannot be made.
        """
        if not create and not (self._folder / name / "zarr.json").is_file():
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return zarr.open_group(self._folder / name, mode="a" if create else "r+")
        except OSError as error:
            raise GramError(
                f"nothing can be kept in folder={str(self._folder)!r}: {error}"
            ) from error
