"""Overlapping windows over texts that score every token once, and what a model says of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.corpus import Document
from actstore.corpus.tokens import Encoder
from actstore.errors import AnalysisError, NonFiniteError
from actstore.models.batch import padded
from actstore.models.running import call_with_ids
from actstore.models.tensors import rows_of

if TYPE_CHECKING:
    from actstore.models import LanguageModel

DECODED = 128 << 20  # bytes of logits at a time


@dataclass(frozen=True, slots=True)
class Window:
    """Ids of one forward pass; which positions are scored, and whose document each is of."""

    ids: NDArray[np.int32]
    scored: NDArray[np.intp]
    document: NDArray[np.intp]


def windows_of(
    model: LanguageModel,
    texts: Sequence[Document],
    context: int,
    stride: int,
    boundaries: str,
    bos: str,
) -> Iterator[Window]:
    """The windows of some documents, or of all of them as one long text."""
    encoder = Encoder(model.tokenizer, bos, None)
    encoded = encoder.encode(texts)
    if boundaries == "concatenated":
        # what closes a document (SEP) belongs to its own end, where nothing is predicted
        kept = [slice(0, len(one.ids) - one.suffix) for one in encoded]
        ids = np.concatenate([one.ids[part] for one, part in zip(encoded, kept, strict=True)])
        special = np.concatenate(
            [one.special[part] for one, part in zip(encoded, kept, strict=True)]
        )
        owner = np.repeat(np.arange(len(texts)), [part.stop for part in kept])
        yield from cut(ids[:0], ids, special, owner, context, stride)
        return
    for number, one in enumerate(encoded):
        text = slice(one.prefix, len(one.ids) - one.suffix)
        owner = np.full(text.stop - text.start, number)
        yield from cut(
            one.ids[: one.prefix], one.ids[text], one.special[text], owner, context, stride
        )


def cut(
    prefix: NDArray[np.int32],
    text: NDArray[np.int32],
    special: NDArray[np.bool_],
    owner: NDArray[np.intp],
    context: int,
    stride: int,
) -> Iterator[Window]:
    """Overlapping windows over one text, each behind the prefix."""
    before = len(prefix)
    room = context - before
    most = room if before else room - 1  # some token must stand before each
    if stride > most:
        raise AnalysisError(
            f"stride={stride} with {room} tokens of text in a window of context={context}, of "
            f"which {before} are the prefix: tokens would have nothing to be predicted from, or no "
            f"window; use a stride of at most {most}"
        )
    start, done = 0, 0
    while done < len(text):
        end = min(start + room, len(text))
        new = np.arange(done, end)
        # a token with nothing before it has no prediction
        new = new[~special[done:end] & (before + new - start > 0)]
        if len(new):
            ids = np.concatenate([prefix, text[start:end]])
            yield Window(ids, before + new - start, owner[new])
        start, done = start + stride, end


def scored(
    model: LanguageModel,
    windows: Sequence[Window],
    n_documents: int,
    batch_tokens: int,
    progress: bool | None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Summed surprisal (nats) and number of scored tokens of each document."""
    sums, counts = np.zeros(n_documents), np.zeros(n_documents, np.int64)
    order = sorted(range(len(windows)), key=lambda k: -len(windows[k].ids))
    if not order:
        raise AnalysisError("no token to score: every text is empty, or one token with no prefix")
    with tqdm(
        total=len(order),
        desc="perplexity",
        unit="window",
        file=sys.stderr,
        disable=None if progress is None else not progress,
    ) as bar:
        while order:
            longest = len(windows[order[0]].ids)
            batch = [windows[k] for k in order[: max(1, batch_tokens // longest)]]
            del order[: len(batch)]
            surprisal = _surprisal(model, batch)
            owner = np.concatenate([one.document for one in batch])
            sums += np.bincount(owner, weights=surprisal, minlength=n_documents)
            counts += np.bincount(owner, minlength=n_documents)
            bar.update(len(batch))
    return sums, counts


def _surprisal(model: LanguageModel, batch: Sequence[Window]) -> NDArray[np.float64]:
    """−log p of each scored token, window after window."""
    ids, mask = padded([one.ids for one in batch], model.pad_id)
    width = ids.shape[1]
    rows = np.concatenate([k * width + one.scored - 1 for k, one in enumerate(batch)])
    wanted = np.concatenate([one.ids[one.scored] for one in batch]).astype(np.int64)
    with model.exclusive():
        output = call_with_ids(model.base, ids, mask, model.device)
        states = rows_of(output[0])[torch.as_tensor(rows, device=output[0].device)]
        hidden = (states.float() if states.element_size() < 4 else states).cpu().numpy()
    found = np.empty(len(rows))
    step = max(1, DECODED // (4 * model.vocab_size))
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        logits = torch.from_numpy(model.decode(hidden[part], normed=True))
        target = torch.from_numpy(wanted[part])[:, None]
        found[part] = (logits.logsumexp(1) - logits.gather(1, target)[:, 0]).numpy()
    if not np.isfinite(found).all():
        raise NonFiniteError(f"{model.name} gives logits that are NaN or infinite")
    return found
