"""Who may write what of a run: locks that a dead process does not hold.

Two kinds, both of the operating system's and both bound to an open file, so that they end with
the process whatever ends it. One stands on the run's folder: a writer of the whole run has it
alone, the writers of shares hold it together. The other stands on single shards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from actstore.errors import LockedError, StoreError


class FolderLock:
    """A ``flock`` on a folder, released by `close` or by the process's end.

    Parameters
    ----------
    folder : Path or None
        Must exist; None (a store that is not local) locks nothing.
    what : str
        What is being locked, for the error's text.
    wait : bool
        Wait for the other holder instead of refusing.
    shared : bool
        Held together with others that share it, and not beside one that does not.

    Raises
    ------
    LockedError
        Where another writer, in this process or another, holds it.
    """

    def __init__(
        self, folder: Path | None, what: str, *, wait: bool = False, shared: bool = False
    ) -> None:
        self._descriptor: int | None = None
        if folder is None:
            return
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while self._descriptor is None:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(descriptor)
                raise LockedError(
                    f"{what} is being written by another process: wait for it to end, then "
                    "run the same call again to complete what is missing"
                ) from None
            if _same(descriptor, folder):
                self._descriptor = descriptor
            else:
                os.close(descriptor)

    def close(self) -> None:
        """Release the lock; harmless when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ShardLocks:
    """Locks on some shards of a run: one byte of a file each, which is not changed by it.

    They belong to the open file (``F_OFD_SETLK``), not to the process, so that two writers in one
    process refuse each other too.

    Parameters
    ----------
    file : Path or None
        Must exist; None (a store that is not local) locks nothing.
    shards : sequence of int
    what : str
        The run and where it is, for the error's text.

    Raises
    ------
    LockedError
        Naming the first shard that another writer holds; none is held then.
    StoreError
        The operating system has no such locks.
    """

    def __init__(self, file: Path | None, shards: Sequence[int], what: str) -> None:
        self._descriptor: int | None = None
        if file is None or not shards:
            return
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise StoreError(
                f"several writers of {what} need open-file-description locks (Linux, macOS), which "
                "this system lacks: leave rank and world_size out"
            )
        self._descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        for shard in shards:
            try:
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _exclusive(shard))
            except (BlockingIOError, PermissionError):
                self.close()
                raise LockedError(
                    f"shard {shard} of {what} is being written by another process: give every "
                    "writer its own rank, or wait for the other to end"
                ) from None

    def close(self) -> None:
        """Release the locks; harmless when none is held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()


def _exclusive(byte: int) -> bytes:
    """A ``struct flock`` for one byte."""
    kind, whence, length, process = fcntl.F_WRLCK, os.SEEK_SET, 1, 0
    if sys.platform == "darwin":
        return struct.pack("qqihh", byte, length, process, kind, whence)
    return struct.pack("hhqqi4x", kind, whence, byte, length, process)


def _same(descriptor: int, folder: Path) -> bool:
    """Whether the locked folder is still the one of that name (it may have been removed)."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False
