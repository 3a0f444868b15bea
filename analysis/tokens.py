"""Which samples are first tokens, punctuation, numbers, starts of words, or frequent tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from actstore.errors import AnalysisError

if TYPE_CHECKING:
    from actstore.store import Run


def drop_first(run: Run, first_token: str | int) -> Run:
    """The run without the samples at leading positions of their sequence.

    Parameters
    ----------
    first_token : {"keep", "drop"} or int
        "drop": without position 0; a number: without as many positions.

    Raises
    ------
    AnalysisError
        Another value, no coordinate ``position``, or no samples left.
    """
    if first_token == "keep":
        return run
    count = 1 if first_token == "drop" else first_token
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise AnalysisError(
            f"first_token={first_token!r}: give 'keep', 'drop', or how many positions to drop"
        )
    if "position" not in run.samples.variables:
        raise AnalysisError(
            f"{run.model}/{run.corpus} has no sample coordinate 'position' to tell first tokens by"
        )
    kept = np.asarray(run.samples["position"].values) >= count
    if not kept.any():
        raise AnalysisError(
            f"first_token={first_token!r} leaves none of the {run.n_samples:,} samples of "
            f"{run.model}/{run.corpus}"
        )
    return run if kept.all() else run.isel(sample=kept)
