"""In what order to take blocks out: by how linear they are, or how little they do.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §4 removes the most linear first.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import actstore
from actstore.errors import AnalysisError
from analysis import influence, linearity
from analysis.pruning.surgery import remove

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run

CRITERIA = ("linearity", "linearity_no_residual", "block_influence", "angular_distance")
_HIGHEST_FIRST = {"linearity": True, "linearity_no_residual": True}


@dataclass(frozen=True, eq=False)
class Ranking:
    """Blocks in the order in which to take them out.

    Attributes
    ----------
    order : list of int
        Blocks of the original model.
    scores : (steps, blocks) float64
        What each step decided by: the criterion of every block still there, NaN for those that
        were gone. One row where it was scored once.
    by : str
    rescored : bool
    first_token : str or int
    """

    order: list[int]
    scores: NDArray[np.float64]
    by: str
    rescored: bool
    first_token: str | int


def states(
    model: LanguageModel | Any,
    documents: Any,
    store: Any,
    *,
    context: int = 512,
    bos: str = "tokenizer",
    corpus_name: str = "all-positions",
    progress: bool | None = None,
    **options: Any,
) -> Run:
    """States of the stream at all positions, which ranking and replacing blocks are based on.

    A map that takes a block's place is applied at every position, the first token's included,
    so that maps fitted on some positions only would be used where nobody fitted them.

    Parameters
    ----------
    model, documents, store, bos, corpus_name, progress, **options
        As for `actstore.extract`; all layers at all positions of texts and prefixes.
    context : int
        Tokens of a document that are kept, from its beginning.
    """
    return actstore.extract(
        model,
        documents,
        store,
        positions="all",
        include_special=True,
        max_length=context,
        bos=bos,
        corpus_name=corpus_name,
        progress=progress,
        **options,
    )


def rank_blocks(
    run: Run,
    *,
    by: str = "linearity",
    rescored: bool = False,
    model: LanguageModel | None = None,
    count: int | None = None,
    first_token: str | int = "keep",
    progress: bool | None = None,
) -> Ranking:
    """The order in which to take blocks out.

    Parameters
    ----------
    run : Run
        What `states` made: every layer, all positions.
    by : {"linearity", "linearity_no_residual", "block_influence", "angular_distance"}
        The most linear first (`analysis.linearity.scores`, in-sample as published, with or
        without the residual), or what turns the stream least first (`analysis.influence`, one
        block at a time). Of equals the lower block is first; blocks without a score come last.
    rescored : bool
        After each removal, run the pruned model over the run's sequences and score what is left
        of it; needs `model`. Otherwise scored once, on the whole model.
    model : LanguageModel, optional
        The one that `run` was extracted from.
    count : int, optional
        How many blocks to rank; default: all but one.
    first_token : {"keep", "drop"} or int
        Whether first tokens, whose norms can outweigh all others, take part in the scores.
    progress : bool, optional

    Raises
    ------
    AnalysisError
        An unknown criterion, a run that has not all positions or layers, a count that cannot be.
    """
    if by not in CRITERIA:
        raise AnalysisError(f"by={by!r}; choose from {CRITERIA}")
    check_all_positions(run)
    depth = len(run.sites["resid"]) - 1
    most = depth - 1 if count is None else count
    if not 0 <= most < depth:
        raise AnalysisError(f"count={count}: of {depth} blocks, 0…{depth - 1} can be taken out")
    first = _scores(run, by, first_token, progress)
    if not rescored:
        order = _sorted(first, by)[:most]
        return Ranking(order, first[None], by, False, first_token)
    if model is None:
        raise AnalysisError("rescored=True runs the pruned model again: give model=")
    left, order, rows = list(range(depth)), [], [first]
    while len(order) < most:
        if order:
            fresh = _again(run, model, order, by, first_token, progress)
            row = np.full(depth, np.nan)
            row[left] = fresh
            rows.append(row)
        best = left[_sorted(rows[-1][left], by)[0]]
        order.append(best)
        left.remove(best)
    return Ranking(order, np.array(rows), by, True, first_token)


def check_all_positions(run: Run) -> None:
    """AnalysisError unless the run has every layer at every position of its sequences."""
    sampling = run.info()["key"]["sampling"]
    every = sampling["positions"] == "all" and sampling["include_special"]
    layers = run.sites.get("resid", [])
    if not every or list(layers) != list(range(len(layers))) or len(layers) < 2:
        raise AnalysisError(
            f"{run.model}/{run.corpus} has {sampling['positions']!r} positions, special tokens "
            f"{'included' if sampling['include_special'] else 'left out'}, layers {layers}; blocks "
            "are ranked and replaced by states at all positions and layers, which "
            "analysis.pruning.states extracts"
        )


def _again(
    run: Run,
    model: LanguageModel,
    gone: list[int],
    by: str,
    first_token: str | int,
    progress: bool | None,
) -> NDArray[np.float64]:
    """Scores of the blocks left, from the pruned model's own states."""
    numbers = np.unique(run.samples.sequence.values)
    documents = [actstore.Document(input_ids=ids.tolist()) for ids in run.input_ids(numbers)]
    with tempfile.TemporaryDirectory(prefix="actstore-ranking-") as folder:
        again = states(
            actstore.load_model(remove(model, gone), tokenizer=False, name="pruned"),
            documents,
            Path(folder) / "s.zarr",
            context=max(len(document.input_ids or ()) for document in documents),
            bos="none",
            progress=progress,
        )
        return _scores(again, by, first_token, progress)


def _scores(
    run: Run, by: str, first_token: str | int, progress: bool | None
) -> NDArray[np.float64]:
    """(blocks,) of the criterion."""
    options: dict[str, Any] = {"first_token": first_token, "cluster": None, "progress": progress}
    if by == "block_influence":
        found = influence.block_influence(run, **options).influence
    elif by == "angular_distance":
        found = influence.angular_distance(run, 1, **options).distance.sel(span=1)
    else:
        name = "score" if by == "linearity" else "score_no_residual"
        found = linearity.scores(run, orthogonal=False, parts=1, **options)[name]
    values: NDArray[np.float64] = np.asarray(found.values, np.float64)
    return values


def _sorted(scores: NDArray[np.float64], by: str) -> list[int]:
    signed = -scores if _HIGHEST_FIRST.get(by, False) else scores
    order: list[int] = np.argsort(signed, kind="stable").tolist()  # NaN sorts last
    return order
