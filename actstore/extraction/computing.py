"""Shards through the model and into the store, one written while the next is computed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from actstore.errors import ModelError
from actstore.models import LanguageModel
from actstore.store import RunWriter


def tokens_of_a_batch(model: LanguageModel, chosen: int | None) -> int:
    """`chosen`, or what runs well: on a CPU what stays in its caches, elsewhere what fills it."""
    if chosen is None:
        device = next(model.model.parameters()).device
        return 1024 if device.type == "cpu" else 16384
    if chosen < 1:
        raise ModelError(f"batch_tokens={chosen}: a forward pass takes at least 1 token")
    return chosen


def fill(
    writer: RunWriter, model: LanguageModel, batch_tokens: int | None, progress: bool | None
) -> None:
    """Compute and commit the pending shards of a writer."""
    batch_tokens = tokens_of_a_batch(model, batch_tokens)
    pending = writer.pending()
    bar = tqdm(
        total=sum(writer.shard_size(k) for k in pending),
        unit="sample",
        desc=writer.name,
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar, ThreadPoolExecutor(1, thread_name_prefix="actstore-writer") as pool:
        writing: Future[None] | None = None
        memories = (Memory(), Memory())
        for number, shard in enumerate(pending):
            work = ShardWork.of(writer, shard, model.causal)
            memory = memories[number % 2]
            arrays = work.compute(model, writer.request, batch_tokens, memory, bar.update)
            if writing is not None:
                writing.result()
            writing = pool.submit(writer.write, shard, arrays)
        if writing is not None:
            writing.result()


@dataclass(frozen=True)
class ShardWork:
    """What goes through the model for one shard.

    Attributes
    ----------
    input_ids : list of int32 arrays
        One for every sequence that the shard has rows of; cut behind the last of them where what
        follows cannot reach it.
    positions, rows : list of int arrays
        For each sequence: where its rows are, and which of the shard's they are.
    n_rows : int
    """

    input_ids: list[np.ndarray]
    positions: list[np.ndarray]
    rows: list[np.ndarray]
    n_rows: int

    @classmethod
    def of(cls, writer: RunWriter, shard: int, causal: bool) -> ShardWork:
        """The work of one shard; `causal` says that no token reaches an earlier one."""
        sequence, position = writer.shard_samples(shard)
        numbers, first = np.unique(sequence, return_index=True)
        ids = writer.input_ids(numbers)
        rows = np.split(np.arange(len(sequence)), first[1:])
        positions = [position[group] for group in rows]
        if causal:
            ids = [one[: where.max() + 1] for one, where in zip(ids, positions, strict=True)]
        return cls(ids, positions, rows, len(sequence))

    def batches(self, batch_tokens: int) -> list[list[int]]:
        """The sequences in batches."""
        return list(batches([len(ids) for ids in self.input_ids], batch_tokens))

    def capture(
        self, model: LanguageModel, batch: list[int], wanted: dict[str, list[int]]
    ) -> dict[str, np.ndarray]:
        """(layers, rows, width) of every site for one batch."""
        return model.capture(
            [self.input_ids[b] for b in batch], [self.positions[b] for b in batch], wanted
        )

    def compute(
        self,
        model: LanguageModel,
        wanted: dict[str, list[int]],
        batch_tokens: int,
        memory: Memory,
        advance: Callable[[int], object],
    ) -> dict[str, np.ndarray]:
        """(layers, rows of the shard, width) of every site, in `memory`, in the corpus's order."""
        arrays = {
            site: memory.array(
                site, (len(layers), self.n_rows, model.sites[site].width), model.row_dtype
            )
            for site, layers in wanted.items()
        }
        for batch in self.batches(batch_tokens):
            rows = np.concatenate([self.rows[b] for b in batch])
            model.capture(
                [self.input_ids[b] for b in batch],
                [self.positions[b] for b in batch],
                wanted,
                out=arrays,
                at=rows,
            )
            advance(len(rows))
        return arrays


class Memory:
    """Arrays that are used again: the first touch of new memory costs more than the copy."""

    def __init__(self) -> None:
        self._flat: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of unknown content; that of the same name before is no longer its own."""
        size = int(np.prod(shape))
        if name not in self._flat or self._flat[name].size < size:
            self._flat[name] = np.empty(size, dtype)
        return self._flat[name][:size].reshape(shape)


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices in batches of similar length, each at most `batch_tokens` with its padding."""
    order = sorted(range(len(lengths)), key=lambda b: (-lengths[b], b))
    batch: list[int] = []
    for b in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(b)
    if batch:
        yield batch
