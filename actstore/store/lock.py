"""One writer a run: a lock that a dead process does not hold."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from actstore.errors import LockedError


class FolderLock:
    """An exclusive ``flock`` on a folder, released by `close` or by the process's end.

    Parameters
    ----------
    folder : Path or None
        Must exist; None (a store that is not local) locks nothing.
    what : str
        What is being locked, for the error's text.
    wait : bool
        Wait for the other holder instead of refusing.

    Raises
    ------
    LockedError
        Where another writer, in this process or another, holds it.
    """

    def __init__(self, folder: Path | None, what: str, *, wait: bool = False) -> None:
        self._descriptor: int | None = None
        if folder is None:
            return
        while self._descriptor is None:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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


def _same(descriptor: int, folder: Path) -> bool:
    """Whether the locked folder is still the one of that name (it may have been removed)."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False
