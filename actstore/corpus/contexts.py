"""From the drawn positions of a document to the sequences that are run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from actstore.corpus.tokens import Encoded
from actstore.errors import SamplingError
from actstore.wording import count


@dataclass(frozen=True, slots=True)
class Piece:
    """One sequence to run, with the samples it gives.

    Attributes
    ----------
    ids : (n_tokens,) int32
        As run.
    position : (n,) int32
        Of the samples, in ``ids``.
    place : (n,) int32
        Of the samples, in the ids of the whole document.
    target : (n,) int32
        The next id of the document, −1 at its end; under a mask the id that it replaced.
    """

    ids: np.ndarray
    position: np.ndarray
    place: np.ndarray
    target: np.ndarray


@dataclass(frozen=True, slots=True)
class Windows:
    """How long documents are cut into overlapping sequences.

    The special tokens around a document stand around each window. Windows of ``length`` tokens,
    those included, start ``stride`` tokens of text apart, until one reaches the end. A token is
    taken from the first window it is in, which is the one that shows the most of what is before
    it: after the first window, at least the length of a window's text less ``stride``. Special
    tokens around the document are taken from the first and the last window.

    Parameters
    ----------
    length
        Tokens of a window, special ones included.
    stride
        Tokens of text from one window's start to the next one's; None for half of the text that
        a window holds.
    """

    length: int
    stride: int | None = None

    def check_room(self, specials: int) -> None:
        """SamplingError if the windows leave gaps, given the special tokens in each."""
        room = self.length - specials
        if self.stride is not None and self.stride > room:
            raise SamplingError(
                f"stride={self.stride} is more than the {count(room, 'token')} of text in a "
                "window of "
                f"max_length={self.length}, so tokens between windows would be lost; use at most "
                f"{room}"
            )

    def of(self, document: Encoded, positions: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """(ids, positions in them, places in the document) of the windows that have samples."""
        ids, before, after = document.ids, document.prefix, document.suffix
        if len(ids) <= self.length:
            if len(positions):
                yield ids, positions, positions
            return
        room = self.length - before - after
        stride = max(1, room // 2) if self.stride is None else self.stride
        n_text = len(ids) - before - after
        count = 1 + -(-(n_text - room) // stride)
        # the first window that a text token is in; the specials behind the text: the last
        text = np.clip(positions - before, 0, n_text - 1)
        window = np.where(text < room, 0, 1 + (text - room) // stride)
        window = np.where(positions >= before + n_text, count - 1, window)
        window = np.where(positions < before, 0, window)
        for number in np.unique(window):
            start = int(number) * stride
            end = min(start + room, n_text)
            sequence = np.concatenate(
                [ids[:before], ids[before + start : before + end], ids[before + n_text :]]
            )
            place = positions[window == number]
            behind = place >= before + n_text
            shift = np.where(behind, n_text - (end - start), np.where(place < before, 0, start))
            yield sequence, (place - shift).astype(np.int32), place


def pieces(
    document: Encoded,
    positions: np.ndarray,
    *,
    windows: Windows | None,
    prefix: bool,
    mask_id: int | None,
) -> Iterator[Piece]:
    """The sequences of one document.

    Parameters
    ----------
    positions : (n,) int32
        The samples, in the ids of the whole document.
    windows
        How a long document is cut; None: it is one sequence.
    prefix
        Cut each sequence behind its sample, so that each sample has a sequence of its own.
    mask_id
        Put in the place of the sample, which then has a sequence of its own; None: nothing is.
    """
    following = np.append(document.ids[1:], np.int32(-1))
    whole = [(document.ids, positions, positions)] if len(positions) else []
    for ids, position, place in whole if windows is None else windows.of(document, positions):
        if not prefix and mask_id is None:
            yield Piece(ids, position, place, following[place])
            continue
        for at, there in zip(position, place, strict=True):
            end = at + 1 if prefix else len(ids)
            sequence = ids[:end]
            target = following[there]
            if mask_id is not None:
                target = ids[at]
                sequence = sequence.copy()
                sequence[at] = mask_id
            yield Piece(sequence, *(np.array([v], np.int32) for v in (at, there, target)))
