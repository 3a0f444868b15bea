"""Linear maps in the place of blocks: fitted on states at all positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import actstore
from analysis.pruning.ranking import check_all_positions
from analysis.pruning.surgery import checked_blocks
from analysis.tokens import drop_first

if TYPE_CHECKING:
    from actstore.fitting import LinearMap
    from actstore.store import Run


def fit_maps(
    run: Run,
    blocks: Iterable[int] | None = None,
    *,
    intercept: bool = True,
    ridge: float = 0.0,
    first_token: str | int = "keep",
    progress: bool | None = None,
) -> dict[int, LinearMap]:
    """For each block the least-squares map from what enters it to what leaves it.

    Parameters
    ----------
    run : Run
        What `analysis.pruning.states` made: every layer, all positions.
    blocks : iterable of int, optional
        Default: all.
    intercept : bool
        Whether y = x A + b, or y = x A.
    ridge : float
        α of `actstore.fit`.
    first_token : {"keep", "drop"} or int
        "drop" fits without first tokens, whose norms can outweigh all others. In the model the
        map is applied to them all the same, and what it makes of an attention sink that it never
        saw can be anything.
    progress : bool, optional

    Returns
    -------
    dict of int to LinearMap
        For block b the map from layer b to layer b + 1.

    Raises
    ------
    AnalysisError
        A run that has not all positions and layers; a block that the model does not have.
    """
    check_all_positions(run)
    depth = len(run.sites["resid"]) - 1
    chosen = range(depth) if blocks is None else sorted(checked_blocks(blocks, depth))
    kept = drop_first(run, first_token)
    found = {}
    for block in chosen:
        # two layers at a time: the Gram of all would be of the square of their number
        pair = actstore.gram(kept, layers=[block, block + 1], cache=False, progress=progress)
        maps = actstore.fit(
            pair, pairs=[(block, block + 1)], ridge=ridge, intercept=intercept, progress=progress
        )
        found[block] = maps[block, block + 1]
    return found
