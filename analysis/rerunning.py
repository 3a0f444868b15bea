"""A run's sequences, batched to be run again, and what comes out scored against the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from actstore.errors import AnalysisError, NonFiniteError
from analysis.decoding import MEMORY

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that are run together, and the rows wanted of them.

    Attributes
    ----------
    ids : list of int arrays
    rows : (n,) int64
        Flat numbers into the padded batch.
    samples : (n,) int64
        The run's samples that these rows are.
    """

    ids: list[np.ndarray]
    rows: NDArray[np.int64]
    samples: NDArray[np.int64]


def batches(run: Run, model: LanguageModel, batch_tokens: int) -> list[Batch]:
    """The run's sequences, alike in length together, about `batch_tokens` tokens each.

    What follows the last sampled position is left out for causal models: it changes nothing.
    """
    samples = run.samples
    numbers, inverse = np.unique(samples.sequence.values, return_inverse=True)
    position = samples.position.values.astype(np.int64)
    needed = np.zeros(len(numbers), np.int64)
    np.maximum.at(needed, inverse, position + 1)
    sequences = run.input_ids(numbers)
    if model.causal:
        sequences = [ids[:n] for ids, n in zip(sequences, needed, strict=True)]
    lengths = np.array([len(ids) for ids in sequences])
    order = np.argsort(lengths, kind="stable")
    by_sequence = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[by_sequence], np.arange(len(numbers) + 1))
    found, begin = [], 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and (end + 1 - begin) * lengths[order[end]] <= batch_tokens:
            end += 1
        chosen = order[begin:end]
        longest = int(lengths[chosen].max())
        own = [by_sequence[starts[k] : starts[k + 1]] for k in chosen]
        rows = [i * longest + position[mine] for i, mine in enumerate(own)]
        found.append(
            Batch([sequences[k] for k in chosen], np.concatenate(rows), np.concatenate(own))
        )
        begin = end
    return found


def chosen_samples(run: Run, most: int | None, seed: int) -> Run:
    """At most so many of the run's samples, drawn without replacement by `seed`."""
    if most is None or most >= run.n_samples:
        return run
    if most < 1:
        raise AnalysisError(f"{most} samples asked for; at least one is needed")
    drawn = np.random.default_rng(seed).choice(run.n_samples, most, replace=False)
    return run.isel(sample=np.sort(drawn))


def scores(
    model: LanguageModel, original: NDArray[np.float32], changed: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]:
    """Rank and surprisal under the model's own distribution of what changed states say.

    Maps applied over and over, at positions that they were not fitted on, may blow up. Where
    logits are not finite there is no prediction: it counts as the worst there is, behind all
    tokens in rank and with the surprisal of the model's least likely token.

    Returns
    -------
    rank, surprisal : (changed, n)
        As in `analysis.comparing.Comparison`.
    lost : (changed, n) bool
        Where logits are not finite.

    Raises
    ------
    NonFiniteError
        The unchanged model's logits are not finite.
    """
    shape = (len(changed), len(original))
    rank, lost = np.empty(shape, np.int32), np.empty(shape, np.bool_)
    surprisal = np.empty(shape, np.float32)
    step = max(1, MEMORY // (8 * model.vocab_size))
    for begin in range(0, len(original), step):
        rows = slice(begin, begin + step)
        final = model.decode(original[rows])
        if not np.isfinite(final).all():
            raise NonFiniteError(f"{model.name} itself gives logits that are NaN or infinite")
        index = np.arange(len(final))
        peak, least = final.max(axis=1), final.min(axis=1)
        partition = np.log(np.exp(final - peak[:, None]).sum(axis=1, dtype=np.float64))
        for number, states in enumerate(changed):
            with np.errstate(over="ignore", invalid="ignore"):
                logits = model.decode(states[rows])
            best = logits.argmax(axis=1)
            wrong = ~np.isfinite(logits[index, best])
            at = np.where(wrong, least, final[index, best])
            behind = (final > at[:, None]).sum(axis=1)
            rank[number, rows] = np.where(wrong, model.vocab_size, behind)
            surprisal[number, rows] = partition + peak - at
            lost[number, rows] = wrong
    return rank, surprisal, lost
