"""Peeking: the tokens that every layer would predict, for a few samples.

"Jump to Conclusions" (arXiv 2303.09435) §3 shows the top five tokens decoded at each layer,
``mat`` beside ``id``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from actstore.corpus import token_strings
from actstore.errors import AnalysisError, SelectionError
from analysis import results
from analysis.decoding import SHORTCUTS, readouts_to_last, require_finite, stream

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel
    from actstore.store import Run

_SHOWN = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_CONTEXT_WIDTH = 100


def peek(
    run: Run,
    maps: MapSet | None,
    model: LanguageModel,
    samples: Sequence[int] = (0, 1, 2, 3, 4),
    *,
    k: int = 5,
    shortcuts: Sequence[str] = SHORTCUTS,
) -> xr.Dataset:
    """The k best tokens decoded at every layer, and where the final answer settles.

    Parameters
    ----------
    run, maps, model
        As for `analysis.prediction.curves`.
    samples : sequence of int
        Positions among the samples in view; negative ones count from the end.
    k : int
        Tokens per layer. Where logits tie, the lower id comes first.
    shortcuts : sequence of "mat", "id"
        How states are brought to the last layer.

    Returns
    -------
    xarray.Dataset
        ``token`` (str), ``token_id`` and ``probability`` (shortcut, sample, layer, rank; the
        softmax of the logits decoded there); ``answer`` (sample), the model's own best token;
        ``appears`` (shortcut, sample), the first layer whose best token is the answer, and
        ``settles``, the first from which it is at every layer in view; ``context`` and
        ``continuation`` (sample), the text up to and including the sampled token, and after it.
        Coordinate ``sample`` keeps `samples`.

    Raises
    ------
    SelectionError
        A sample that the run does not have.
    AnalysisError, SiteError, NonFiniteError
        As for `analysis.prediction.curves`.
    """
    positions = _positions(samples, run.n_samples)
    if model.tokenizer is None:
        raise AnalysisError(f"{model.name} has no tokenizer to show tokens with; load it with one")
    if not 1 <= k <= model.vocab_size:
        raise AnalysisError(f"k={k} asked for; it lies in 1…{model.vocab_size}")
    view = run.isel(sample=np.unique(positions))
    order = np.searchsorted(np.unique(positions), positions)
    readouts = readouts_to_last(view, maps, model, shortcuts)
    layers = list(readouts)

    shape = (len(shortcuts), view.n_samples, len(layers), k)
    ids, probabilities = np.empty(shape, np.int64), np.empty(shape, np.float64)

    def keep_top(shortcut: str, layer: int, rows: slice, logits: NDArray[np.float32]) -> None:
        for number, row in enumerate(logits, start=rows.start):
            best = _top(row, k)
            require_finite(row[best], shortcut, layer)
            weights = np.exp(row - row[best[0]])
            place = list(shortcuts).index(shortcut), number, layers.index(layer)
            ids[place] = best
            probabilities[place] = weights[best] / weights.sum(dtype=np.float64)

    stream(view, model, readouts, keep_top, progress=False)
    ids, probabilities = ids[:, order], probabilities[:, order]
    answers = ids[0, :, -1, 0]
    right = ids[..., 0] == answers[:, None]
    first_settled = right.shape[-1] - np.logical_and.accumulate(right[..., ::-1], axis=-1).sum(-1)

    dims = ("shortcut", "sample", "layer", "rank")
    texts = _texts(view, model)
    dataset = xr.Dataset(
        {
            "token": (dims, token_strings(model.tokenizer, ids.ravel()).reshape(ids.shape)),
            "token_id": (dims, ids),
            "probability": (dims, probabilities),
            "answer": ("sample", token_strings(model.tokenizer, answers)),
            "appears": (("shortcut", "sample"), np.asarray(layers)[right.argmax(axis=-1)]),
            "settles": (("shortcut", "sample"), np.asarray(layers)[first_settled]),
            "context": ("sample", np.array([before for before, _ in texts], object)[order]),
            "continuation": ("sample", np.array([after for _, after in texts], object)[order]),
        },
        coords={
            "shortcut": list(shortcuts),
            "sample": positions,
            "layer": layers,
            "rank": np.arange(1, k + 1),
            "depth": ("layer", np.array(layers) / model.n_blocks),
        },
    )
    record = results.provenance(
        "analysis.prediction.peek",
        runs={"samples": view},
        model=model,
        maps=maps if "mat" in shortcuts else None,
        samples=positions,
        k=k,
        shortcuts=list(shortcuts),
    )
    return results.label(dataset, "peek", f"{run.model} on {run.corpus}", record)


def peek_table(dataset: xr.Dataset) -> str:
    """The decoded tokens as tables for the terminal, one for each sample.

    Spaces and line ends inside tokens are made visible and control characters are escaped. A
    ``*`` marks the layers from which on the best token is the model's answer, a ``+`` those
    where it is and does not stay it.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `peek` returned.
    """
    return "\n\n".join(
        _sample_table(dataset.isel(sample=i)) for i in range(dataset.sizes["sample"])
    )


def visible(token: str) -> str:
    """A token with its blanks shown and nothing in it that a terminal would obey."""
    return "".join(
        _SHOWN.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode())
        for c in token
    )


def readable(text: str) -> str:
    """Running text with nothing in it that a terminal would obey; its spaces stay spaces."""
    return " ".join(visible(word) for word in text.split(" "))


def _sample_table(at: xr.Dataset) -> str:
    shortcuts = at.shortcut.values.tolist()
    context = readable(at.context.item())
    if len(context) > _CONTEXT_WIDTH:
        context = "…" + context[-_CONTEXT_WIDTH:]
    settled, first = (
        ", ".join(f"{m} {at[name].sel(shortcut=m).item()}" for m in shortcuts)
        for name in ("settles", "appears")
    )
    lines = [
        f"sample {at.sample.item()}: {context}",
        f"answer {visible(at.answer.item())}  (first at layer: {first}; stays from: {settled})",
    ]
    answer = at.token_id.isel(layer=-1, shortcut=0).values[0]
    cells = [["layer", *(m for m in shortcuts)]]
    for layer in at.layer.values.tolist():
        row = [str(layer)]
        for shortcut in shortcuts:
            here = at.sel(layer=layer, shortcut=shortcut)
            pairs = zip(here.token.values, here.probability.values, strict=True)
            hit = "+" if here.token_id.values[0] == answer else " "
            mark = "*" if layer >= here.settles.item() else hit
            row.append(mark + "  ".join(f"{visible(token)} {p:.2f}" for token, p in pairs))
        cells.append(row)
    widths = [max(_columns(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        padded = [c + " " * (w - _columns(c)) for c, w in zip(line, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _columns(text: str) -> int:
    """Columns that a terminal gives the text: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _top(row: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Indices of the k greatest values, greatest first, the lower index where they tie."""
    threshold = row[np.argpartition(row, len(row) - k)[len(row) - k]]
    candidates = np.flatnonzero(~(row < threshold))
    return candidates[np.argsort(-row[candidates], kind="stable")][:k]


def _positions(samples: Sequence[int], n: int) -> NDArray[np.int64]:
    positions = np.asarray(samples)
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or positions.size == 0:
        raise SelectionError(f"samples {samples!r}; expected a list of whole numbers")
    outside = positions[(positions < -n) | (positions >= n)]
    if outside.size:
        raise SelectionError(f"sample {outside[0]} asked for, but there are samples 0…{n - 1}")
    wrapped: NDArray[np.int64] = np.where(positions < 0, positions + n, positions).astype(np.int64)
    return wrapped


def _texts(run: Run, model: LanguageModel) -> list[tuple[str, str]]:
    """For each sample the text up to and including its token, and the text after it."""
    samples = run.samples
    numbers, inverse = np.unique(samples.sequence.values, return_inverse=True)
    sequences = run.input_ids(numbers)
    texts = []
    for sequence, position in zip(inverse, samples.position.values, strict=True):
        ids, cut = sequences[sequence], int(position) + 1
        texts.append(
            (model.tokenizer.decode(ids[:cut].tolist()), model.tokenizer.decode(ids[cut:].tolist()))
        )
    return texts
