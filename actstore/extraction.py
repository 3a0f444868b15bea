"""Corpus + model → store.

The plan comes first: every document is tokenised, its positions are drawn and the coordinates
are on disk before the first forward pass, so that each shard knows its rows and can be computed,
committed and, after an interruption, recomputed on its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from tqdm import tqdm

from actstore.corpus import PlanBlock, Sampling, plan, read_corpus, token_strings
from actstore.errors import (
    KeyMismatchError,
    MissingRunError,
    MissingStoreError,
    ModelError,
    SamplingError,
)
from actstore.models import LanguageModel, load_model
from actstore.store import Run, RunBuilder, RunWriter, create_run, open, resume_run

if TYPE_CHECKING:
    from actstore.corpus import Corpus

STORED_DTYPES = ("float32", "float16", "bfloat16")
KEY_OF_A_MODEL = ("fingerprint", "tokenizer_fingerprint", "dtype", "attn_implementation", "causal")


class SamplingOptions(TypedDict, total=False):
    """Keywords of `extract` that go to :class:`actstore.corpus.Sampling`."""

    seed: int
    per_document: int
    bos: str
    include_special: bool
    max_length: int | None


def extract(
    model: Any,
    corpus: Any,
    store: Any,
    *,
    sites: Sequence[str] | str = ("resid",),
    layers: Sequence[int] | int | slice | None = None,
    positions: str | Sampling = "random",
    dtype: str = "auto",
    model_name: str | None = None,
    corpus_name: str | None = None,
    tokenizer: Any = None,
    shard_rows: int | None = None,
    batch_tokens: int = 4096,
    progress: bool | None = None,
    **sampling: Unpack[SamplingOptions],
) -> Run:
    """Run `model` over `corpus` and write its activations to `store`; resume if interrupted.

    The run is named ``(model_name, corpus_name)`` in the store. Calling again with the same
    arguments computes only what is missing, and nothing where the run is complete.

    Parameters
    ----------
    model : str, Path, PreTrainedModel or LanguageModel
        Hub id, local folder, GGUF file, loaded model (with `tokenizer`), or the result of
        :func:`actstore.load_model`, which takes the options of loading.
    corpus : str, Path, datasets.Dataset, iterable of str or Document, or Corpus
        See :func:`actstore.read_corpus`, which takes the options of reading.
    store : str, Path or zarr Store
        Made if it does not exist.
    sites : sequence of str
        What to store: ``"resid"`` is the residual stream (layer 0 is what enters the first
        block, layer L what leaves the last one, *before* the final norm); ``model.sites`` lists
        the others.
    layers : int, sequence of int, or slice, optional
        Layers (blocks, for sites inside a block) to store; all by default. Negative numbers
        count from the end.
    positions : {"random", "all", "last", ...} or Sampling
        Which tokens of each document become samples. ``"random"`` is one position per document,
        uniform over its tokens, as in "Jump to Conclusions" (arXiv 2303.09435) §2.
    dtype : {"auto", "float32", "float16", "bfloat16"}
        Stored dtype; ``"auto"`` is the dtype the model computes in, which stores exactly.
    model_name, corpus_name : str, optional
        Labels in the store; by default the last part of the model's id and the file's stem.
    tokenizer : PreTrainedTokenizerBase, optional
        Needed with a loaded model.
    shard_rows : int, optional
        Samples per shard, the unit that is written, committed and resumed.
    batch_tokens : int
        Tokens, padding included, of one forward pass.
    progress : bool, optional
        Show a progress bar on stderr; by default only on a terminal.
    **sampling
        ``seed``, ``per_document``, ``bos``, ``include_special``, ``max_length``: see
        :class:`actstore.corpus.Sampling`.

    Returns
    -------
    Run
        The run that was written or completed.

    Raises
    ------
    ModelError, CorpusError, SamplingError, SiteError
        Before anything is written.
    KeyMismatchError
        A run of this name exists and was made from something else; the message says what.
    NonFiniteError, DtypeOverflowError
        An activation cannot be stored; the shards before it stay committed.
    """
    chosen = _sampling(positions, sampling)
    language_model = load_model(model, tokenizer=tokenizer, name=model_name)
    if language_model.tokenizer is None:
        raise ModelError(
            f"{language_model.name} has no tokenizer; pass tokenizer= beside the loaded model"
        )
    documents = read_corpus(corpus, name=corpus_name)
    wanted = language_model.resolve([sites] if isinstance(sites, str) else list(sites), layers)
    stored = _stored_dtype(dtype, language_model)
    key, info = _identity(language_model, documents, chosen)
    label = (language_model.name, documents.name)

    existing = _existing(store, label)
    if existing is not None and not existing.key_differences(key, stored):
        if _holds(existing, wanted):
            return existing
        _check_versions(existing, info)
    writer = resume_run(
        store, *label, key=key, wanted=wanted, sites=language_model.sites, dtype=stored
    )
    if writer is None:
        builder = create_run(store, *label)
        with builder:
            counts = _plan(builder, language_model, documents, chosen, progress)
            writer = builder.finish(
                key=key,
                info={**info, **counts},
                sites=language_model.sites,
                wanted=wanted,
                dtype=stored,
                shard_rows=shard_rows,
            )
    with writer:
        _fill(writer, language_model, wanted, batch_tokens, progress)
        return writer.run


def _sampling(positions: str | Sampling, options: SamplingOptions) -> Sampling:
    if isinstance(positions, Sampling):
        if options:
            raise SamplingError(
                f"{', '.join(options)} given beside a Sampling; put them into the Sampling"
            )
        return positions
    unknown = set(options) - set(SamplingOptions.__annotations__)
    if unknown:
        raise TypeError(
            f"extract() has no option {', '.join(sorted(unknown))}; "
            f"sampling takes {', '.join(sorted(SamplingOptions.__annotations__))}"
        )
    return Sampling(positions=positions, **options)


def _stored_dtype(dtype: str, model: LanguageModel) -> str:
    if dtype == "auto":
        dtype = str(model.dtype).removeprefix("torch.")
    if dtype not in STORED_DTYPES:
        raise ModelError(f"dtype {dtype!r} cannot be stored; choose {', '.join(STORED_DTYPES)}")
    return dtype


def _identity(
    model: LanguageModel, corpus: Corpus, sampling: Sampling
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The key (same key, same content) and what else is worth telling of where it came from."""
    about = model.describe()
    key = {
        "model": {name: about[name] for name in KEY_OF_A_MODEL},
        "corpus": {"fingerprint": corpus.fingerprint()},
        "sampling": sampling.to_dict(),
    }
    return key, {"model": about}


def _existing(store: Any, label: tuple[str, str]) -> Run | None:
    try:
        return open(store)[label]
    except (MissingStoreError, MissingRunError):
        return None


def _holds(run: Run, wanted: dict[str, list[int]]) -> bool:
    return run.state == "complete" and all(
        set(layers) <= set(run.sites.get(site, ())) for site, layers in wanted.items()
    )


def _check_versions(run: Run, info: dict[str, Any]) -> None:
    """Rows of one run come from one version of the libraries that compute them."""
    before, now = run.info()["info"]["model"]["versions"], info["model"]["versions"]
    changed = [
        f"{name} {before.get(name)} → {now[name]}" for name in now if before.get(name) != now[name]
    ]
    if changed:
        raise KeyMismatchError(
            f"{run.name} is unfinished and was begun with other versions ({', '.join(changed)}); "
            "finish it with those, or use another name (model_name=, corpus_name=)"
        )


def _plan(
    builder: RunBuilder,
    model: LanguageModel,
    corpus: Corpus,
    sampling: Sampling,
    progress: bool | None,
) -> dict[str, int]:
    """Write every sample's coordinates and the ids to be run; count what gave no sample."""
    skipped = truncated = 0
    tokenizer = model.tokenizer
    for block in plan(corpus, tokenizer, sampling, progress=progress):
        _check_lengths(model, block)
        skipped += block.skipped
        truncated += block.truncated
        coordinates = {
            "document": block.document,
            "position": block.position,
            "sequence": builder.n_sequences + block.sample_sequence,
            "token_id": block.token_id,
            "token": token_strings(tokenizer, block.token_id),
            "target_id": block.target_id,
            **block.metadata,
        }
        builder.append(coordinates, block.input_ids, block.sequence_document)
    return {
        "documents": corpus.survey.n_documents,
        "documents_without_samples": skipped,
        "documents_truncated": truncated,
    }


def _check_lengths(model: LanguageModel, block: PlanBlock) -> None:
    longest = max(map(len, block.input_ids), default=0)
    if model.max_length is not None and longest > model.max_length:
        at = next(n for n, ids in enumerate(block.input_ids) if len(ids) == longest)
        raise SamplingError(
            f"document {block.sequence_document[at]} has {longest} tokens, but {model.name} has "
            f"positions for {model.max_length}; max_length={model.max_length} cuts it there"
        )


def _fill(
    writer: RunWriter,
    model: LanguageModel,
    wanted: dict[str, list[int]],
    batch_tokens: int,
    progress: bool | None,
) -> None:
    """Compute the pending shards; one is written while the next is computed."""
    pending = writer.pending()
    total = sum(len(writer.shard_samples(k)[1]) for k in pending)
    bar = tqdm(
        total=total,
        unit="sample",
        desc=writer.name,
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar, ThreadPoolExecutor(1, thread_name_prefix="actstore-writer") as pool:
        writing: Future[None] | None = None
        for shard in pending:
            arrays = _compute(writer, shard, model, wanted, batch_tokens, bar)
            if writing is not None:
                writing.result()
            writing = pool.submit(writer.write, shard, arrays)
        if writing is not None:
            writing.result()


def _compute(
    writer: RunWriter,
    shard: int,
    model: LanguageModel,
    wanted: dict[str, list[int]],
    batch_tokens: int,
    bar: tqdm[Any],
) -> dict[str, np.ndarray]:
    """All wanted activations of one shard, rows in corpus order."""
    sequence, position = writer.shard_samples(shard)
    numbers, first = np.unique(sequence, return_index=True)
    ids = writer.input_ids(numbers)
    row_groups = np.split(np.arange(len(sequence)), first[1:])
    places = [position[rows] for rows in row_groups]
    if model.causal:
        # What follows the last sampled position cannot reach it.
        ids = [one[: where.max() + 1] for one, where in zip(ids, places, strict=True)]
    arrays: dict[str, np.ndarray] = {}
    for batch in batches([len(one) for one in ids], batch_tokens):
        captured = model.capture([ids[b] for b in batch], [places[b] for b in batch], wanted)
        rows = np.concatenate([row_groups[b] for b in batch])
        for site, values in captured.items():
            if site not in arrays:
                shape = (values.shape[0], len(sequence), values.shape[2])
                arrays[site] = np.empty(shape, values.dtype)
            arrays[site][:, rows] = values
        bar.update(len(rows))
    return arrays


def batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices in batches of similar length, each at most `batch_tokens` with its padding."""
    order = sorted(range(len(lengths)), key=lambda b: (-lengths[b], b))
    batch: list[int] = []
    for b in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(b)
    if batch:
        yield batch
