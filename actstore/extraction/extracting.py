"""`extract`: run a model over a corpus and store what was asked for.

The plan comes first: every document is tokenised, its positions are drawn and the coordinates
are on disk before the first forward pass, so that each shard knows its rows and can be computed,
committed and, after an interruption, recomputed on its own, by whichever writer owns it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from actstore.errors import KeyMismatchError, StoreError
from actstore.extraction.cluster import check_sources, fill_on_cluster
from actstore.extraction.computing import fill
from actstore.extraction.growing import continues, finish_growing, grow
from actstore.extraction.job import make_job
from actstore.extraction.planning import begin, open_run
from actstore.store import Run, RunWriter, Share, check_same_codec
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.corpus import Sampling


def extract(
    model: Any,
    corpus: Any,
    store: Any,
    *,
    sites: Sequence[str] | str = ("resid",),
    layers: Sequence[int] | int | slice | None = None,
    positions: str | Sampling | Any = "random",
    dtype: str = "auto",
    codec: str | None = None,
    model_name: str | None = None,
    corpus_name: str | None = None,
    tokenizer: Any = None,
    shard_rows: int | None = None,
    batch_tokens: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    client: Any = None,
    append: bool = False,
    progress: bool | None = None,
    **sampling: Any,
) -> Run:
    """Run `model` over `corpus` and write its activations to `store`; resume if interrupted.

    The run is named ``(model_name, corpus_name)`` in the store. Calling again with the same
    arguments computes only what is missing, and nothing where the run is complete. However it was
    interrupted or shared, the store ends with the same bytes (on the same hardware, with as many
    threads and the same `batch_tokens`: sums are rounded alike only there).
    :func:`actstore.plan_extraction` tells beforehand what it would take.

    Parameters
    ----------
    model : str, Path, PreTrainedModel or LanguageModel
        Hub id, local folder, GGUF file, loaded model (with `tokenizer`), or the result of
        :func:`actstore.load_model`, which takes the options of loading.
    corpus : str, Path, datasets.Dataset, iterable of str or Document, or Corpus
        See :func:`actstore.read_corpus`, which takes the options of reading.
    store : str, Path or zarr Store
        Folder or URL (``s3://bucket/acts.zarr``); made if it does not exist.
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
    dtype : {"auto", "float32", "float16", "bfloat16", "int8"}
        Stored dtype; ``"auto"`` is the dtype the model computes in, which stores exactly.
        ``"int8"`` keeps each row as whole multiples of 1/127 of its largest magnitude: no value
        is off by more than 1/254 of that.
    codec : {"none", "zstd"}, optional
        ``"none"``, the default of a new run, stores rows as they are. ``"zstd"`` compresses each
        chunk: files are 1.02 to 1.15 times smaller in float16, 1.1 to 1.35 times in bfloat16,
        and are read whole and 2 to 4 times slower. A run that exists keeps its codec; another
        one that is asked for by name is refused.
    model_name, corpus_name : str, optional
        Labels in the store; by default the last part of the model's id and the file's stem.
    tokenizer : PreTrainedTokenizerBase, optional
        Needed with a loaded model.
    shard_rows : int, optional
        Samples per shard, the unit that is written, committed and resumed; by default about 1/32
        of the run, with chunks of at most 64 MB.
    batch_tokens : int, optional
        Tokens, padding included, of one forward pass; by default 1,024 on a CPU, where small
        batches stay in its caches, and 16,384 elsewhere. Rows are the same up to rounding.
    rank, world_size : int, optional
        This process is writer number `rank` of `world_size`: it computes the shards k with
        k mod world_size = rank, and returns when those are committed. Any rank may start first
        and makes the plan; the others wait for it. Each shard is locked while its writer lives,
        so two writers never meet in one. On an object store there are no locks: rank 0 plans,
        and each rank must have one process.
    client : distributed.Client, optional
        Compute the shards as tasks on a dask cluster. Every worker loads the model itself, so
        `model` must be an id, a path, or a function without arguments that gives a
        `LanguageModel`, such as ``functools.partial(actstore.load_model, "gpt2")``; and each
        must reach `store`.
    append : bool
        The run exists, complete, and `corpus` begins with the documents it was made from: add
        those that follow. The grown run is made beside the old one (``<corpus>.growing``) and
        takes its place when it is complete; whole shards are taken over, not computed. Readers
        that opened the old run open it again.
    progress : bool, optional
        Show a progress bar on stderr; by default only on a terminal.
    **sampling
        The other fields of :class:`actstore.corpus.Sampling`: ``seed``, ``per_document``,
        ``bos``, ``include_special``, ``max_length``, ``overflow``, ``stride``, ``context``.

    Returns
    -------
    Run
        The run that was written or completed.

    Raises
    ------
    ModelError, CorpusError, SamplingError, SiteError
        Before anything is written.
    KeyMismatchError
        A run of this name exists and was made from something else, or is stored with another
        codec than was asked for; the message says what.
    StoreError
        The disk has too little room, before anything is computed; or writing failed.
    LockedError
        Another process is writing the run, or one of this rank's shards.
    NonFiniteError, DtypeOverflowError
        An activation cannot be stored; the shards before it stay committed.
    """
    share = share_of(rank, world_size)
    if shard_rows is not None and shard_rows < 1:
        raise StoreError(f"shard_rows={shard_rows}: a shard has at least 1 row")
    if client is not None and share is not None:
        raise StoreError("client= and rank= are two ways to share the work: give one of them")
    if client is not None:
        check_sources(model, store)
    source, model = model, _called(model)
    job = make_job(
        model,
        corpus,
        sites=sites,
        layers=layers,
        positions=positions,
        dtype=dtype,
        codec=codec,
        model_name=model_name,
        corpus_name=corpus_name,
        tokenizer=tokenizer,
        sampling=sampling,
    )
    if append:
        finish_growing(job.label, store)
    existing = open_run(job, store)
    if existing is not None:
        check_same_codec(existing.name, existing.stored.record.codec, job.codec)
    if existing is not None and existing.key_differences(job.key, job.dtype):
        if continues(job, existing):
            if append and share is None and client is None:
                return grow(job, store, existing, batch_tokens=batch_tokens, progress=progress)
            raise KeyMismatchError(
                f"{existing.name} was made from the first {existing.info()['info']['documents']} "
                f"of these {count(job.corpus.survey.n_documents, 'document')}: append=True "
                "(--append), "
                "without ranks or a client, adds the others"
            )
        existing.check_key(job.key, job.dtype)
    if existing is not None and job.is_done(existing):
        return existing
    writer = begin(job, store, shard_rows=shard_rows, share=share, progress=progress)
    if writer.mended:
        warnings.warn(_mended(writer), UserWarning, stacklevel=2)
    with writer:
        if client is None:
            fill(writer, job.model, batch_tokens, progress)
            return writer.run
    fill_on_cluster(client, source, job, store, writer, batch_tokens, progress)
    return writer.run


def _mended(writer: RunWriter) -> str:
    more = len(writer.mended) - 3
    shown = "; ".join(writer.mended[:3]) + (f"; and {more} more" if more > 0 else "")
    return f"{writer.name} was not as it was left, and is made good: {shown}"


def share_of(rank: int | None, world_size: int | None) -> Share | None:
    """The writer's share; None for a writer of the whole run."""
    if rank is None and world_size is None:
        return None
    return Share(rank, world_size)  # type: ignore[arg-type]  # it refuses None by name


def _called(model: Any) -> Any:
    """What a function that loads a model gives; anything else as it is."""
    plain = callable(model) and not hasattr(model, "forward") and not hasattr(model, "capture")
    return model() if plain else model
