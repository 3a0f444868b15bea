"""Readouts of hidden layers against the model's own distribution, the whole of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import NonFiniteError
from analysis.decoding import SITE, Readout, require_finite

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run

_HELD = 4  # blocks of logits at a time


@dataclass(frozen=True, slots=True)
class Distributions:
    """What readouts say against what the model says, all of shape (readout, layer, sample).

    Attributes
    ----------
    rank : int32
        Tokens with a strictly greater final logit than the readout's best token, the lowest id
        where several are best.
    surprisal : float32
        −ln p of that token, in nats, p the model's own distribution.
    divergence : float32
        KL(p ‖ q) in nats, q the readout's distribution.
    """

    rank: NDArray[np.int32]
    surprisal: NDArray[np.float32]
    divergence: NDArray[np.float32]


def compare_distributions(
    run: Run,
    model: LanguageModel,
    readouts: Mapping[int, Readout],
    names: Sequence[str],
    memory: int,
    progress: bool | None,
) -> Distributions:
    """Rank, surprisal and KL of every readout, a bounded block of samples at a time.

    Parameters
    ----------
    run : Run
        With the layers of `readouts` and the last one in view.
    readouts : mapping of layer to {name: LinearMap or None}
        None decodes the state itself.
    names : sequence of str
        The readouts, in the order of the results' first axis.
    memory : int
        Bytes of logits held at a time.
    """
    shape = (len(names), len(readouts), run.n_samples)
    found = Distributions(
        np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(shape, np.float32)
    )
    blocks = run.row_blocks(max(memory // (4 * _HELD * model.vocab_size), 1))
    bar = tqdm(
        total=len(blocks) * len(readouts),
        desc="decode",
        unit="block",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar:
        for block in blocks:
            final = model.decode(_states(run, model.n_blocks, block))
            require_finite(final, "the model itself", model.n_blocks)
            log_p = log_softmax(final)
            p = np.exp(log_p)
            index = np.arange(len(final))
            for column, (layer, readout) in enumerate(readouts.items()):
                states = _states(run, layer, block)
                for row, name in enumerate(names):
                    linear: Any = readout[name]
                    logits = model.decode(states if linear is None else linear(states))
                    require_finite(logits, name, layer)
                    best = logits.argmax(axis=1)
                    place = (row, column, block.out)
                    found.rank[place] = (final > final[index, best][:, None]).sum(axis=1)
                    found.surprisal[place] = -log_p[index, best]
                    gaps = np.subtract(log_p, log_softmax(logits), out=logits)
                    found.divergence[place] = np.einsum("ij,ij->i", p, gaps)
                bar.update()
    return found


def _states(run: Run, layer: int, block: Any) -> NDArray[np.float32]:
    states = np.asarray(run.read(SITE, layer, block), np.float32)
    if not np.isfinite(states).all():
        raise NonFiniteError(
            f"{run.model}/{run.corpus} layer {layer} holds NaN or infinity among samples "
            f"{block.out.start}…{block.out.stop - 1}; extract these rows anew"
        )
    return states


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """ln of the softmax over the last axis of (rows, vocabulary) logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)).astype("f4")
    return shifted
