"""Which samples are first tokens, punctuation, numbers, starts of words, or frequent tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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


BANDS = ("rare tokens", "middling tokens", "frequent tokens")


def classes(run: Run) -> dict[str, NDArray[np.bool_]]:
    """Which samples belong to which class of tokens, as far as the coordinates tell.

    Parameters
    ----------
    run : Run
        ``position`` gives first and later positions; ``token``, the text of the token, gives
        kinds; ``token_id`` frequency bands.

    Returns
    -------
    dict of name to (n_samples,) bool
        * ``all``;
        * ``first token`` and ``later tokens``: position 0 of its sequence, or not (both there
          only if both occur);
        * kinds, each sample of one: ``special`` (``<s>`` and the like, ``[CLS]``), ``number``
          (holds a digit and no letter), ``word start`` and ``continuation`` (hold a letter; a
          start begins with a space or, where the run has tokens such as ``##ing``, does not begin
          with ##; where it has neither, letters are all ``word start``), ``punctuation`` (all
          else);
        * thirds of the samples by how often their token occurs in this very run: ``rare tokens``,
          ``middling tokens``, ``frequent tokens``. Equally frequent tokens stay together, so
          that thirds are rough in small runs.

        Classes without a sample are left out.
    """
    found = {"all": np.ones(run.n_samples, bool)}
    known = run.samples.variables
    if "position" in known:
        first = np.asarray(run.samples["position"].values) == 0
        if first.any() and not first.all():
            found |= {"first token": first, "later tokens": ~first}
    if "token" in known:
        kinds = token_kinds(np.asarray(run.samples["token"].values, object))
        found |= {kind: kinds == kind for kind in KINDS}
    if "token_id" in known:
        band = frequency_bands(np.asarray(run.samples["token_id"].values))
        found |= {name: band == number for number, name in enumerate(BANDS)}
    return {name: mask for name, mask in found.items() if mask.any()}


_SPECIAL = re.compile(r"<[^<>]+>|\[(?:CLS|SEP|MASK|PAD|UNK)\]")
KINDS = ("special", "punctuation", "number", "word start", "continuation")


def token_kinds(tokens: NDArray[np.object_]) -> NDArray[np.object_]:
    """(n,) str: the kind of each token's text, one of `KINDS`, as `classes` says."""
    distinct, numbers = np.unique(tokens.astype(str), return_inverse=True)
    pieces = any(text.startswith("##") and len(text) > 2 for text in distinct)
    spaced = any(text[:1].isspace() and text.strip() for text in distinct)

    def kind(text: str) -> str:
        if _SPECIAL.fullmatch(text.strip()):
            return "special"
        if any(character.isalpha() for character in text):
            inside = text.startswith("##") if pieces else spaced and not text[:1].isspace()
            return "continuation" if inside else "word start"
        return "number" if any(character.isdigit() for character in text) else "punctuation"

    return np.array([kind(text) for text in distinct], object)[numbers]


def frequency_bands(token_ids: NDArray) -> NDArray[np.intp]:
    """(n,) 0, 1 or 2: the third of the samples by the occurrences of their token, ties together."""
    _, numbers, counts = np.unique(token_ids, return_inverse=True, return_counts=True)
    often = counts[numbers]
    _, place, sizes = np.unique(often, return_inverse=True, return_counts=True)
    middle = (np.cumsum(sizes) - sizes / 2) / len(often)
    return np.minimum(3 * middle, 2).astype(np.intp)[place]
