"""One batch of token ids: checked, padded on the right, its rows numbered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actstore.errors import ModelError
from actstore.wording import count


def padded(input_ids: Sequence[np.ndarray], pad_id: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Right-pad sequences to one (batch, time) int64 array, with its mask (None if no pads)."""
    lengths = np.array([len(ids) for ids in input_ids])
    batch = np.full((len(input_ids), lengths.max(initial=0)), pad_id, dtype=np.int64)
    mask = np.arange(batch.shape[1]) < lengths[:, None]
    batch[mask] = np.concatenate(input_ids)
    return batch, None if mask.all() else mask.astype(np.int64)


def flat_rows(
    model: str,
    input_ids: Sequence[np.ndarray],
    positions: Sequence[np.ndarray],
    vocabulary: int,
    max_length: int | None,
) -> np.ndarray:
    """Check a batch and number its wanted rows in the padded batch.

    Returns
    -------
    (n_rows,) int64 array
        ``sequence * longest + position``, sequence by sequence in the order given.

    Raises
    ------
    ModelError
        Ids, lengths or positions that the model does not have.
    """
    if len(input_ids) != len(positions):
        raise ModelError(
            f"{count(len(input_ids), 'sequence')} but positions for {len(positions)}; expected "
            "one array "
            "of positions per sequence"
        )
    lengths = np.array([len(ids) for ids in input_ids], dtype=np.int64)
    longest = int(lengths.max(initial=0))
    counts = np.array([len(p) for p in positions], dtype=np.int64)
    if counts.sum() == 0:
        return np.empty(0, dtype=np.int64)
    if lengths.min() == 0:
        raise ModelError(f"sequence {int(lengths.argmin())} has no tokens")
    if max_length is not None and longest > max_length:
        raise ModelError(
            f"a sequence of {count(longest, 'token')} given, but {model} has positions for "
            f"{max_length}; truncate the documents to max_length={max_length}"
        )
    ids = np.concatenate(input_ids)
    outside = (ids < 0) | (ids >= vocabulary)
    if outside.any():
        raise ModelError(
            f"token id {ids[outside.argmax()]} given, but {model} embeds ids 0…{vocabulary - 1}; "
            "is this the model's own tokenizer?"
        )
    sequence = np.repeat(np.arange(len(lengths)), counts)
    flat = np.concatenate(positions).astype(np.int64)
    outside = (flat < 0) | (flat >= lengths[sequence])
    if outside.any():
        at = int(outside.argmax())
        raise ModelError(
            f"position {flat[at]} asked for in sequence {sequence[at]}, which has "
            f"{count(int(lengths[sequence[at]]), 'token')}"
        )
    return sequence * longest + flat


def check_out(
    out: Mapping[str, np.ndarray],
    at: np.ndarray,
    wanted: Mapping[str, Sequence[int]],
    widths: Mapping[str, int],
    n_rows: int,
    dtype: np.dtype[Any],
) -> None:
    """ModelError if arrays cannot take the rows of a batch; see `LanguageModel.capture`."""
    if at.shape != (n_rows,):
        raise ModelError(f"at= has shape {at.shape}, but the batch gives {count(n_rows, 'row')}")
    for site, numbers in wanted.items():
        array, width = out.get(site), widths[site]
        least = int(at.max(initial=-1)) + 1
        if (
            array is None
            or array.ndim != 3
            or (array.shape[0], array.shape[2]) != (len(numbers), width)
            or array.shape[1] < least
            or array.dtype != dtype
            or not array.flags.c_contiguous
        ):
            got = None if array is None else f"{array.dtype} {array.shape}"
            raise ModelError(
                f"out[{site!r}] is {got}, expected contiguous {dtype} "
                f"({len(numbers)}, {least} or more, {width})"
            )
