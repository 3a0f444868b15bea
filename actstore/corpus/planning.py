"""The plan of a run: what goes through the model, and which rows it gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from actstore.corpus.columns import Column
from actstore.corpus.contexts import Piece, pieces
from actstore.corpus.documents import Corpus, Document, Fingerprint, document_id
from actstore.corpus.sampling import Sampling
from actstore.corpus.tokens import Encoded, Encoder
from actstore.errors import CorpusError, SamplingError
from actstore.wording import count

_MAX_CHARACTERS = 1 << 22
"""A block closes once it holds this much text, so that long documents do not fill the memory."""


@dataclass(frozen=True)
class PlanBlock:
    """The plan of some consecutive documents, samples in the order of the corpus.

    Attributes
    ----------
    input_ids
        One int32 array for every sequence to run through the model.
    sequence_document : (n_sequences,) int64
        The document of each sequence, its number in the corpus.
    sample_sequence : (n_samples,) int64
        The sequence of each sample, its index in this block.
    position : (n_samples,) int32
        Index into the sequence's ids; BOS counts.
    document : (n_samples,) int64
        The document of each sample.
    token_id : (n_samples,) int32
        The id that is run at the position.
    target_id : (n_samples,) int32
        The next id of the document, −1 at its end; for ``"mask"`` the id that the mask replaced.
    metadata
        Per sample: ``"document_id"`` and the metadata columns of the documents; where long
        documents are cut into windows also ``"document_position"``, the position in the ids of
        the whole document, special tokens around it included.
    skipped
        Documents that give no sample.
    truncated
        Documents whose end was cut by ``max_length``.
    """

    input_ids: list[np.ndarray]
    sequence_document: np.ndarray
    sample_sequence: np.ndarray
    position: np.ndarray
    document: np.ndarray
    token_id: np.ndarray
    target_id: np.ndarray
    metadata: dict[str, np.ndarray]
    skipped: int
    truncated: int


def plan(
    corpus: Corpus,
    tokenizer: Any,
    sampling: Sampling,
    *,
    batch_size: int = 1024,
    progress: bool | None = None,
) -> Iterator[PlanBlock]:
    """The plan of a corpus, block by block; nothing is kept between blocks.

    Parameters
    ----------
    corpus
        Read twice: once for its fingerprint and metadata columns, once for its tokens.
    tokenizer
        A transformers tokenizer; None where all documents bring their ids.
    sampling
        Which positions, and what stands before the text.
    batch_size
        The most documents in a block. Has no influence on the samples.
    progress
        Show a progress bar; by default on a terminal only.

    Yields
    ------
    PlanBlock
        For every block of documents, in order.

    Raises
    ------
    CorpusError
        If the corpus is empty, or changes while it is read.
    SamplingError
        If the tokenizer lacks a token that is asked for, or no document gives a sample.
    """
    if batch_size < 1:
        raise SamplingError(f"batch_size={batch_size}: at least 1 document is needed")
    mask_id = _mask_id(tokenizer) if sampling.masks else None
    encoder = Encoder(
        tokenizer, sampling.bos, sampling.max_length, cuts=sampling.overflow == "truncate"
    )
    if sampling.windows is not None:
        sampling.windows.check_room(encoder.n_special)
    return _blocks(corpus, encoder, sampling, mask_id, batch_size, progress)


def _blocks(
    corpus: Corpus,
    encoder: Encoder,
    sampling: Sampling,
    mask_id: int | None,
    batch_size: int,
    progress: bool | None,
) -> Iterator[PlanBlock]:
    survey = corpus.survey
    fingerprint = Fingerprint()
    n_samples = 0
    bar = tqdm(
        total=survey.n_documents,
        desc=f"planning {corpus.name}",
        unit="doc",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar:
        for documents in _batches(corpus, batch_size):
            first = fingerprint.n_documents
            for document in documents:
                fingerprint.update(document)
            encoded = encoder.encode(documents, first)
            block = _block(documents, first, encoded, sampling, mask_id, survey.columns)
            n_samples += len(block.position)
            bar.update(len(documents))
            yield block
    if fingerprint.hexdigest() != survey.fingerprint:
        raise CorpusError(
            f"corpus {corpus.name!r} changed while it was read "
            f"({count(survey.n_documents, 'document')} "
            f"before, {fingerprint.n_documents} now, or other content); start again"
        )
    if n_samples == 0:
        raise SamplingError(
            f"no token of corpus {corpus.name!r} can be sampled: all {survey.n_documents} "
            "documents are empty, too short, or hold special tokens only"
        )


def _batches(corpus: Corpus, batch_size: int) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in corpus:
        batch.append(document)
        characters += len(document.text or "") + 4 * len(document.input_ids or ())
        if len(batch) >= batch_size or characters >= _MAX_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _block(
    documents: Sequence[Document],
    first: int,
    encoded: Sequence[Encoded],
    sampling: Sampling,
    mask_id: int | None,
    columns: Sequence[Column],
) -> PlanBlock:
    found: list[Piece] = []
    owner: list[int] = []  # of each sequence: index of its document in this block
    skipped = 0
    windows = sampling.windows
    for index, one in enumerate(encoded):
        positions = sampling.draw(first + index, one.ids, one.special)
        skipped += not len(positions)
        for piece in pieces(
            one,
            positions,
            windows=windows,
            prefix=sampling.context == "prefix",
            mask_id=mask_id,
        ):
            found.append(piece)
            owner.append(index)
    counts = np.array([len(piece.position) for piece in found], dtype=np.int64)
    sequence_owner = np.array(owner, dtype=np.int64)
    sample_owner = np.repeat(sequence_owner, counts)
    names = np.empty(len(documents), dtype=object)
    names[:] = [document_id(document, first + i) for i, document in enumerate(documents)]
    metadata = {"document_id": names[sample_owner]}
    if windows is not None:
        metadata["document_position"] = _joined([piece.place for piece in found]).astype(np.int64)
    for column in columns:
        values = column.values([document.metadata for document in documents])
        metadata[column.name] = values[sample_owner]
    return PlanBlock(
        input_ids=[piece.ids for piece in found],
        sequence_document=sequence_owner + first,
        sample_sequence=np.repeat(np.arange(len(counts)), counts),
        position=_joined([piece.position for piece in found]),
        document=sample_owner + first,
        token_id=_joined([piece.ids[piece.position] for piece in found]),
        target_id=_joined([piece.target for piece in found]),
        metadata=metadata,
        skipped=skipped,
        truncated=sum(one.truncated for one in encoded),
    )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int32), *parts])


def _mask_id(tokenizer: Any) -> int:
    mask_id = None if tokenizer is None else tokenizer.mask_token_id
    if mask_id is None:
        raise SamplingError(
            'positions="mask" needs a tokenizer with a mask token; this one has none (it belongs '
            'to a causal model?): use "random"'
        )
    return int(mask_id)
