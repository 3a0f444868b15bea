"""Documents to token ids: special tokens, truncation, and the strings of single tokens."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actstore.corpus.documents import Document
from actstore.errors import CorpusError, SamplingError


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of one document as they are run.

    Attributes
    ----------
    ids : (n_tokens,) int32
    special : (n_tokens,) bool
        True for tokens that stand for no text: BOS, CLS, SEP, padding, mask… A tokenizer's
        unknown token does stand for text.
    truncated
        Whether the end was cut off.
    prefix, suffix
        How many special tokens were put before the text, and behind it.
    """

    ids: np.ndarray
    special: np.ndarray
    truncated: bool
    prefix: int = 0
    suffix: int = 0


class Encoder:
    """Turns documents into ids under one policy for special tokens.

    Parameters
    ----------
    tokenizer
        A transformers tokenizer, or None where all documents bring their ids.
    bos
        ``"tokenizer"``: the special tokens that the tokenizer itself adds; ``"none"``: none;
        any other string: that one token in front and no other.
    max_length
        The most tokens a sequence may have, special ones included. The end of the text is cut,
        never its beginning; a closing special token (SEP) stays.
    cuts
        Whether a longer text is cut here; if not, that it leaves room for text is checked alone.

    Raises
    ------
    SamplingError
        If ``bos`` is not a token of the vocabulary.
    """

    def __init__(
        self, tokenizer: Any, bos: str, max_length: int | None, *, cuts: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length if cuts else None
        self._own_specials = bos == "tokenizer"
        self._prefix: list[int] = []
        if bos not in ("tokenizer", "none"):
            self._prefix = [_token_id(tokenizer, bos)]
        own = _affixes(tokenizer) if self._own_specials else (0, 0)
        self._before, self._suffix = len(self._prefix) or own[0], own[1]
        self._special_ids = np.array(sorted(special_ids(tokenizer)), dtype=np.int32)
        self._start_ids = self._prefix or _start_ids(tokenizer)
        self._warned = False
        if max_length is not None and max_length <= self.n_special:
            raise SamplingError(
                f"max_length={max_length} leaves no room for text beside the special tokens"
            )

    @property
    def n_special(self) -> int:
        """How many special tokens stand around each text."""
        return self._before + self._suffix

    def encode(self, documents: Sequence[Document], first_number: int = 0) -> list[Encoded]:
        """The ids of some consecutive documents, of which the first has ``first_number``."""
        texts = [d.text for d in documents if d.input_ids is None and d.text is not None]
        tokenised = iter(self._tokenise(texts, first_number))
        out = []
        for number, document in enumerate(documents, first_number):
            if document.input_ids is None:
                ids, prefix, suffix = next(tokenised), self._before, self._suffix
                ids = self._prefix + ids
            else:
                ids, prefix, suffix = list(document.input_ids), 0, 0
                self._check_vocabulary(ids, number)
            out.append(self._finish(ids, prefix, suffix, number))
        return out

    def _tokenise(self, texts: list[str], first_number: int) -> list[list[int]]:
        if not texts:
            return []
        if self._tokenizer is None:
            raise SamplingError(
                f"a document from number {first_number} on is text, but there is no tokenizer; "
                "pass tokenizer=, or give every document its input_ids"
            )
        ids: list[list[int]] = _call(self._tokenizer, texts, self._own_specials)
        return ids

    def _finish(self, ids: list[int], prefix: int, suffix: int, number: int) -> Encoded:
        limit = self._max_length
        truncated = limit is not None and len(ids) > limit
        if truncated:
            assert limit is not None
            ids = ids[: limit - suffix] + ids[len(ids) - suffix :]
        array = np.asarray(ids, dtype=np.int32)
        special = np.isin(array, self._special_ids)
        special[: len(self._prefix) if prefix else 0] = True
        if len(ids) > 1 and ids[0] == ids[1] and ids[0] in self._start_ids and not self._warned:
            self._warned = True
            warnings.warn(
                f"document {number} starts with token {ids[0]} twice: the text brings a beginning "
                'of its own; pass bos="none", or strip it from the text, or one from its input_ids',
                UserWarning,
                stacklevel=2,
            )
        return Encoded(array, special, truncated, prefix, suffix)

    def _check_vocabulary(self, ids: list[int], number: int) -> None:
        if self._tokenizer is not None and ids and max(ids) >= len(self._tokenizer):
            raise CorpusError(
                f"document {number} has input id {max(ids)}, but the tokenizer's ids are "
                f"0…{len(self._tokenizer) - 1}"
            )


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of tokens that stand for no text.

    The unknown token is left out, unless it also serves as another (as in GPT-2, where one token
    has all the roles).
    """
    if tokenizer is None:
        return set()
    ids = set(tokenizer.all_special_ids)
    unknown = tokenizer.unk_token_id
    roles = ("bos", "eos", "cls", "sep", "pad", "mask")
    if unknown is not None and unknown not in {getattr(tokenizer, f"{r}_token_id") for r in roles}:
        ids.discard(unknown)
    return ids


def token_strings(tokenizer: Any, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """What single tokens look like, e.g. ``" the"``.

    Parameters
    ----------
    tokenizer
        A transformers tokenizer, or None: every token is then shown as ``"<id 17>"``.
    ids : (n,) int
        Token ids; −1 stands for none.

    Returns
    -------
    (n,) object
        str each: the decoded token with its leading space. A token that is only part of a
        character is given as the vocabulary writes it; −1 gives ``""``.
    """
    unique, inverse = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    strings = np.array([_token_string(tokenizer, int(i)) for i in unique], dtype=object)
    if not len(unique):
        return np.empty(0, dtype=object)
    out: np.ndarray = strings[inverse.reshape(-1)]
    return out


def _token_string(tokenizer: Any, token_id: int) -> str:
    if token_id < 0:
        return ""
    if tokenizer is None:
        return f"<id {token_id}>"
    piece = tokenizer.convert_ids_to_tokens(token_id) if token_id < len(tokenizer) else None
    if piece is None:
        return f"<id {token_id}>"
    text: str = tokenizer.decode(
        [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    if "\ufffd" in text or not text:
        return str(piece)
    # SentencePiece marks a leading space with U+2581 and drops it from a lone token
    return f" {text}" if piece.startswith("\u2581") and not text.startswith(" ") else text


def _call(tokenizer: Any, texts: list[str], add_special_tokens: bool) -> Any:
    return tokenizer(
        texts,
        add_special_tokens=add_special_tokens,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        verbose=False,
    )["input_ids"]


def _token_id(tokenizer: Any, token: str) -> int:
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    if token not in vocabulary:
        own = "none" if tokenizer is None else repr(tokenizer.bos_token)
        raise SamplingError(
            f"bos={token!r} asked for, but the tokenizer has no such token (its own bos_token: "
            f'{own}); use "tokenizer", "none" or a token of its vocabulary'
        )
    return int(vocabulary[token])


def _start_ids(tokenizer: Any) -> list[int]:
    if tokenizer is None:
        return []
    starts = (tokenizer.bos_token_id, tokenizer.cls_token_id)
    return [token_id for token_id in starts if token_id is not None]


def _affixes(tokenizer: Any) -> tuple[int, int]:
    """How many special tokens the tokenizer puts before a text, and behind it."""
    if tokenizer is None:
        return 0, 0
    (full,), (bare,) = _call(tokenizer, ["a"], True), _call(tokenizer, ["a"], False)
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return start, len(full) - start - len(bare)
    return 0, 0
