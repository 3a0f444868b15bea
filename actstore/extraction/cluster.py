"""The shards of a run as tasks of a dask cluster, each a writer of its own share."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from tqdm import tqdm
from zarr.storage import MemoryStore

from actstore.errors import MissingDependencyError, ModelError, StoreError
from actstore.extraction.computing import fill
from actstore.extraction.job import Job, model_key
from actstore.models import LanguageModel, load_model
from actstore.store import RunWriter, Share, resume_run

_TASKS_PER_WORKER = 4
_loaded: dict[str, LanguageModel] = {}
_loading = threading.Lock()


def fill_on_cluster(
    client: Any,
    source: Any,
    job: Job,
    store: Any,
    writer: RunWriter,
    batch_tokens: int | None,
    progress: bool | None,
) -> None:
    """Compute and commit a run's pending shards on the workers of a cluster.

    A task owns the shards k with k mod n = its number. Where a worker dies, dask starts its task
    again elsewhere; what it had committed is not computed again.

    Parameters
    ----------
    client : distributed.Client
    source : str, Path or function
        What `load_model` or a call turns into the model, on a worker.
    writer : RunWriter
        Of the whole run, closed: its plan is on disk, its locks are free.

    Raises
    ------
    ModelError
        `source` gives another model on a worker.
    StoreError
        A worker does not see the store.
    """
    try:
        from distributed import as_completed
    except ImportError:
        raise MissingDependencyError(
            "client= needs the package distributed: pip install 'actstore[cluster]'"
        ) from None
    pending = writer.pending()
    workers = max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)
    n_tasks = min(writer.n_shards, _TASKS_PER_WORKER * workers)
    ranks = sorted({shard % n_tasks for shard in pending})
    where = {"store": store, "label": job.label, "batch_tokens": batch_tokens}
    what = {"key": job.key, "wanted": job.wanted, "dtype": job.dtype}
    tasks = [
        client.submit(_fill_share, source, Share(rank, n_tasks), where, what, pure=False)
        for rank in ranks
    ]
    bar = tqdm(
        total=len(pending),
        unit="shard",
        desc=writer.name,
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    try:
        with bar:
            for task in as_completed(tasks):
                bar.update(task.result())
    finally:
        client.cancel(tasks)


def _fill_share(source: Any, share: Share, where: dict[str, Any], what: dict[str, Any]) -> int:
    """Compute and commit one share, on a worker; how many shards it computed."""
    model = _model(source, where["label"][0], what["key"]["model"])
    writer = resume_run(where["store"], *where["label"], sites=model.sites, share=share, **what)
    if writer is None:
        raise StoreError(
            f"a worker does not see {'/'.join(where['label'])} in {where['store']}: every worker "
            "must reach the store under the same name"
        )
    with writer:
        n_pending = len(writer.pending())
        fill(writer, model, where["batch_tokens"], progress=False)
    return n_pending


def _model(source: Any, name: str, key: dict[str, Any]) -> LanguageModel:
    """The model, loaded once in a worker's process and held against the run's key."""
    with _loading:
        fingerprint = str(key["fingerprint"])
        if fingerprint not in _loaded:
            model = source() if callable(source) else load_model(source, name=name)
            found = model_key(model.describe())
            if found != key:
                differing = ", ".join(n for n in key if found[n] != key[n])
                raise ModelError(
                    f"{name} as loaded by a worker differs in {differing}: give client= workers "
                    "with the same files and libraries"
                )
            _loaded.clear()
            _loaded[fingerprint] = model
        return _loaded[fingerprint]


def check_sources(source: Any, store: Any) -> None:
    """ModelError or StoreError for what cannot be had by the workers of a cluster."""
    loaded = hasattr(source, "forward") or hasattr(source, "capture")
    if loaded or not (isinstance(source, str | Path) or callable(source)):
        raise ModelError(
            f"a loaded {type(source).__name__} cannot go to the workers of a cluster; give the "
            "model's id or path, or functools.partial(actstore.load_model, ...)"
        )
    if isinstance(store, MemoryStore):
        raise StoreError(
            "a store in memory cannot be reached by other processes: use a path or URL"
        )
