"""Bytes by key in any Zarr store: memory, object stores through obstore, or one a user wrote."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from zarr.abc.store import Store as ZarrStore
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from actstore.errors import MissingDependencyError, StoreError

T = TypeVar("T")


class ZarrBackend:
    """Any other Zarr store: memory, object stores, or one a user wrote."""

    def __init__(self, store: ZarrStore, name: str | None = None) -> None:
        self.zarr = store
        self.name = str(store) if name is None else name

    @property
    def root(self) -> Path | None:
        return None

    def get(self, key: str) -> bytes | None:
        value = self._sync(self.zarr.get(key, default_buffer_prototype()))
        return None if value is None else value.to_bytes()

    def put(self, key: str, data: bytes | np.ndarray) -> None:
        buffer = default_buffer_prototype().buffer
        self._sync(
            self.zarr.set(
                key, buffer.from_bytes(data if isinstance(data, bytes) else data.tobytes())
            )
        )

    def copy(self, source: str, target: str) -> None:
        data = self.get(source)
        if data is not None:
            self.put(target, data)

    def size(self, key: str) -> int | None:
        try:
            return self._sync(self.zarr.getsize(key))
        except (FileNotFoundError, KeyError):
            return None

    def sync_folder(self, key: str) -> None:
        """Nothing to do: the store answers for what it has accepted."""

    def sync_tree(self, key: str) -> None:
        """Nothing to do: the store answers for what it has accepted."""

    def delete(self, key: str) -> None:
        if self._sync(self.zarr.exists(key)):
            self._sync(self.zarr.delete(key))

    def delete_tree(self, key: str) -> None:
        self._sync(self.zarr.delete_dir(key))

    def remove_empty(self, key: str) -> None:
        """Nothing to do: there are no folders but those of keys."""

    def move_tree(self, source: str, target: str) -> None:
        # The group's own metadata goes last, and leaves first: it is what makes a run one.
        head = f"{source}/zarr.json"
        for key in [*(key for key in self._walk(source) if key != head), head]:
            data = self.get(key)
            if data is not None:
                self.put(target + key[len(source) :], data)
        self.delete(head)
        self.delete_tree(source)

    def sizes(self, key: str) -> dict[str, int]:
        names = [name for name in self._listed(key) if not name.endswith("/")]

        async def size(name: str) -> int | None:
            try:
                return await self.zarr.getsize(f"{key}/{name}" if key else name)
            except (FileNotFoundError, KeyError):
                return None

        async def every() -> list[int | None]:
            return await asyncio.gather(*(size(name) for name in names))

        return {n: s for n, s in zip(names, self._sync(every()), strict=True) if s is not None}

    def folders(self, key: str) -> list[str]:
        files = self.sizes(key)
        return sorted({name.rstrip("/") for name in self._listed(key)} - set(files))

    def _sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return sync(coroutine)
        except Exception as error:
            told = remote_problem(error)
            if told is None:
                raise
            raise StoreError(f"{self.name}: {told}") from error

    def _listed(self, key: str) -> list[str]:
        async def names() -> list[str]:
            return [name async for name in self.zarr.list_dir(key)]

        return self._sync(names())

    def _walk(self, key: str) -> list[str]:
        async def keys() -> list[str]:
            return [name async for name in self.zarr.list_prefix(key + "/")]

        return sorted(self._sync(keys()))


def remote_store(url: str) -> ZarrStore:
    """The Zarr store behind a URL such as ``s3://bucket/acts.zarr``.

    Region, credentials and endpoint come from the environment, as obstore reads it:
    ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION`` and
    ``AWS_ENDPOINT_URL`` for S3, ``GOOGLE_*`` and ``AZURE_*`` for the others. For anything else pass
    ``zarr.storage.ObjectStore(obstore.store.S3Store(...))`` instead of a URL.

    Raises
    ------
    MissingDependencyError
        Without the extra ``cloud``.
    StoreError
        No such kind of URL.
    """
    try:
        from obstore.store import from_url
    except ImportError:
        raise MissingDependencyError(
            f"{url} is a remote store, which needs obstore: pip install 'actstore[cloud]'"
        ) from None
    from zarr.storage import ObjectStore

    options: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if url.startswith("s3://") and endpoint.startswith("http://"):
        options["client_options"] = {"allow_http": True}
    try:
        return ObjectStore(from_url(url, **options))
    except Exception as error:
        told = remote_problem(error) or _first_line(error)
        raise StoreError(f"{url} cannot be opened as a store: {told}") from error


def remote_problem(error: BaseException) -> str | None:
    """An object store's error in one line; None for any other error."""
    if not type(error).__module__.startswith("obstore"):
        return None
    text = str(error)
    if "NoSuchBucket" in text:
        return "there is no such bucket"
    code = re.search(r"<Code>(\w+)</Code>", text)
    if code is not None:
        return f"the server refused with {code[1]}"
    if "HTTP error" in text or "error sending request" in text:
        return "the server cannot be reached (is AWS_ENDPOINT_URL right?)"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
