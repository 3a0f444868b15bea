"""Which token positions of a document become samples."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from actstore.corpus.contexts import Windows
from actstore.errors import SamplingError

PositionFunction = Callable[[int, np.ndarray, np.ndarray], "Sequence[int] | np.ndarray"]

_EVERY = re.compile(r"every:([1-9][0-9]*)")
_NAMED = ("random", "all", "last", "mask")
_CHOICES = {"overflow": ("truncate", "window"), "context": ("full", "prefix")}
_OPTIONAL = ("max_length", "stride")
_LISTED_IF_CHOSEN = ("overflow", "stride", "context")
"""Left out of the key where they are the defaults, as in runs from before they existed."""


@dataclass(frozen=True)
class Sampling:
    """The choice of positions, and what stands before the text.

    Parameters
    ----------
    positions
        * ``"random"``: ``per_document`` positions, uniform without replacement ("Jump to
          Conclusions", arXiv 2303.09435, §3: one a sentence). Fewer where the document is shorter;
        * ``"all"``;
        * ``"last"``: the last one;
        * ``"every:n"``: every n-th, from the first;
        * ``"mask"``: drawn as by ``"random"``, each in a sequence of its own in which the drawn
          token is replaced by the mask token (same paper, for masked models). ``token_id`` is
          then the mask token, which was run, and ``target_id`` the token it replaced;
        * ints: these positions of every sequence, counted in its ids as run (BOS is 0), negative
          ones from the end; a document too short for one is sampled at the others;
        * a function (document number, ids, special) → positions or a mask over the ids.

        The named ways choose among text tokens; ints and functions are taken as they are.
    seed
        0…2⁶⁴−1. The draw of a document depends on this and on the document's number alone, not
        on batches, on other documents or on the version of NumPy.
    per_document
        How many positions ``"random"`` and ``"mask"`` draw.
    bos
        ``"tokenizer"``: the special tokens that the tokenizer itself adds; ``"none"``: none; any
        other string: that token in front, and no other.
    include_special
        Whether the named ways may choose special tokens (BOS, CLS, SEP…) too.
    max_length
        The most tokens a sequence may have, special ones included.
    overflow
        What happens to longer documents. ``"truncate"``: the end is cut. ``"window"``: they
        become several sequences, which overlap; positions are chosen from the whole document,
        and each comes from the window that shows the most of what is before it
        (:class:`actstore.corpus.contexts.Windows` has the rule).
    stride
        For ``"window"``: how many tokens of text lie between the starts of two windows; by
        default half of the text that a window holds.
    context
        ``"full"``: the whole sequence is run, whatever the position. ``"prefix"``: the sequence
        ends with the sampled token, and each sample has a sequence of its own. That changes the
        states of bidirectional models, which then see no later token, and no closing SEP; those
        of causal models are the same either way.

    Raises
    ------
    SamplingError
        If a value is not one of these.
    """

    positions: str | Sequence[int] | PositionFunction = "random"
    seed: int = 0
    per_document: int = 1
    bos: str = "tokenizer"
    include_special: bool = False
    max_length: int | None = None
    overflow: str = "truncate"
    stride: int | None = None
    context: str = "full"

    def __post_init__(self) -> None:
        for name in ("seed", "per_document", "max_length", "stride"):
            object.__setattr__(self, name, _checked_int(name, getattr(self, name)))
        positions = self.positions
        if isinstance(positions, str):
            if positions not in _NAMED and not _EVERY.fullmatch(positions):
                raise SamplingError(
                    f"positions={positions!r}: choose "
                    f"{', '.join(map(repr, _NAMED))}, 'every:n', ints or a function"
                )
        elif callable(positions):
            _function_key(positions)
        else:
            object.__setattr__(self, "positions", _checked_positions(positions))
        if self.per_document < 1:
            raise SamplingError(f"per_document={self.per_document}: at least 1 is needed")
        if self.per_document > 1 and self.positions not in ("random", "mask"):
            raise SamplingError(
                f"per_document={self.per_document} goes with positions 'random' and 'mask' only"
            )
        if not 0 <= self.seed < 2**64:
            raise SamplingError(f"seed={self.seed}: a seed is in 0…2⁶⁴−1")
        if not isinstance(self.bos, str) or not self.bos:
            raise SamplingError(f'bos={self.bos!r}: "tokenizer", "none" or a token, e.g. "<s>"')
        if self.max_length is not None and self.max_length < 1:
            raise SamplingError(f"max_length={self.max_length}: at least 1 token is needed")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise SamplingError(
                    f"{name}={getattr(self, name)!r}: choose {' or '.join(map(repr, choices))}"
                )
        if self.overflow == "window" and self.max_length is None:
            raise SamplingError("overflow='window' needs max_length, the tokens of a window")
        if self.stride is not None:
            if self.overflow != "window":
                raise SamplingError(f"stride={self.stride} goes with overflow='window' only")
            if not 1 <= self.stride <= (self.max_length or 0):
                raise SamplingError(f"stride={self.stride}: it lies in 1…{self.max_length}")

    @property
    def masks(self) -> bool:
        """Whether the sampled token is hidden from the model by the mask token."""
        return self.positions == "mask"

    @property
    def windows(self) -> Windows | None:
        """How long documents are cut into windows; None where they are not."""
        if self.overflow != "window":
            return None
        assert self.max_length is not None
        return Windows(self.max_length, self.stride)

    def to_dict(self) -> dict[str, Any]:
        """All choices as JSON-able values: equal dicts give equal samples.

        A function is told by its name and its code. ``overflow``, ``stride`` and ``context`` are
        listed where they are not the defaults.
        """
        record = asdict(self)
        for field in fields(self):
            if field.name in _LISTED_IF_CHOSEN and record[field.name] == field.default:
                del record[field.name]
        if callable(self.positions):
            record["positions"] = _function_key(self.positions)
        elif not isinstance(self.positions, str):
            record["positions"] = list(self.positions)
        return record

    def draw(self, document: int, ids: np.ndarray, special: np.ndarray) -> np.ndarray:
        """The sampled positions of one document, increasing.

        Parameters
        ----------
        document
            The document's number in the corpus.
        ids : (n_tokens,) int32
            Its ids as run.
        special : (n_tokens,) bool
            Which of them stand for no text.

        Returns
        -------
        (n,) int32
            Empty where no position can be chosen.

        Raises
        ------
        SamplingError
            If a function gives what is no position of the document.
        """
        if isinstance(self.positions, str):
            eligible = np.arange(len(ids)) if self.include_special else np.flatnonzero(~special)
            chosen = self._draw_named(self.positions, document, eligible)
        elif callable(self.positions):
            chosen = _called(self.positions, document, ids, special)
        else:
            wanted = np.array(self.positions, dtype=np.int64)
            wanted[wanted < 0] += len(ids)
            chosen = np.unique(wanted[(wanted >= 0) & (wanted < len(ids))])
        return chosen.astype(np.int32)

    def _draw_named(self, positions: str, document: int, eligible: np.ndarray) -> np.ndarray:
        if positions == "all":
            return eligible
        if positions == "last":
            return eligible[-1:]
        if every := _EVERY.fullmatch(positions):
            return eligible[:: int(every[1])]
        chosen = uniform_subset(self.seed, document, len(eligible), self.per_document)
        return eligible[chosen]


def uniform_subset(seed: int, document: int, n: int, k: int) -> np.ndarray:
    """min(k, n) different numbers below n, increasing; a function of its arguments alone.

    Fisher–Yates on the raw output of Philox, keyed by seed and document: NumPy keeps that stream
    the same for ever, which it does not promise of ``Generator.choice``.
    """
    if n <= k:
        return np.arange(n)
    bits = np.random.Philox(key=np.array([seed, document], dtype=np.uint64))
    moved: dict[int, int] = {}
    chosen = []
    for i, raw in enumerate(bits.random_raw(k).tolist()):
        j = i + (raw * (n - i) >> 64)
        chosen.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return np.array(sorted(chosen))


def _called(
    function: PositionFunction, document: int, ids: np.ndarray, special: np.ndarray
) -> np.ndarray:
    result = np.asarray(function(document, ids, special))
    if result.dtype == np.bool_ and result.shape == ids.shape:
        return np.flatnonzero(result)
    if result.size == 0:
        return np.empty(0, dtype=np.int64)
    if result.ndim != 1 or not np.issubdtype(result.dtype, np.integer):
        raise SamplingError(
            f"the positions function gave {result.dtype} of shape {result.shape} for document "
            f"{document}; it must give 1-d ints, or a mask of shape ({len(ids)},)"
        )
    chosen = np.unique(np.where(result < 0, result + len(ids), result))
    if chosen[0] < 0 or chosen[-1] >= len(ids):
        raise SamplingError(
            f"the positions function gave {result.min()}…{result.max()} for document {document}, "
            f"which has positions 0…{len(ids) - 1}"
        )
    return chosen


def _checked_int(name: str, value: Any) -> int | None:
    try:
        return None if value is None and name in _OPTIONAL else operator.index(value)
    except TypeError:
        raise SamplingError(f"{name}={value!r}: an int is needed") from None


def _checked_positions(positions: Any) -> tuple[int, ...]:
    try:
        checked = tuple(operator.index(position) for position in positions)
    except TypeError:
        raise SamplingError(
            f"positions={positions!r}: a name, ints or a function is expected"
        ) from None
    if not checked:
        raise SamplingError("positions is empty: at least one is needed")
    return checked


def _function_key(function: Any) -> dict[str, str]:
    """What tells a function from another in a run's key."""
    own = getattr(function, "key", None)
    if isinstance(own, str):
        return {"function": own}
    if not isinstance(function, FunctionType) or function.__closure__:
        raise SamplingError(
            f"positions={function!r}: a stored run must tell this function from others; pass a "
            "function that closes over nothing, or give it an attribute `key` (a str that says "
            "what it does)"
        )
    digest = hashlib.sha256(_code_bytes(function.__code__))
    digest.update(repr((function.__defaults__, function.__kwdefaults__)).encode())
    return {
        "function": f"{function.__module__}.{function.__qualname__}",
        "code": digest.hexdigest(),
    }


def _code_bytes(code: CodeType) -> bytes:
    constants = [
        _code_bytes(value) if isinstance(value, CodeType) else repr(value).encode()
        for value in code.co_consts
    ]
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *constants])
