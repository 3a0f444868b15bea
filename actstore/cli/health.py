"""What an installation has and how fast the machine is, found out by trying."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from actstore import __version__
from actstore.errors import StoreError
from actstore.wording import count

DISK_BYTES = 128 << 20
PRODUCT = 1536  # rows and columns of the matrices multiplied


@dataclass(frozen=True)
class Health:
    """What `examine` found.

    Attributes
    ----------
    machine : dict
        Python, platform, cores, memory in bytes.
    packages : dict of name to version
    extras : dict of extra to list of str
        Which packages of each optional part are missing; empty where it is usable.
    devices : list of str
        What torch can compute on.
    products : dict of dtype to float
        GFLOP/s of numpy's matrix product.
    blas : list of str
        The libraries behind numpy's products, with kernel and threads.
    disk : dict
        Folder, free bytes, MB/s written (flushed to the device) and read back.
    problems : list of str
        What is to be mended; the command exits with 1 if there is anything.
    hints : list of str
        What could be better.
    """

    machine: dict[str, Any]
    packages: dict[str, str]
    extras: dict[str, list[str]]
    devices: list[str]
    products: dict[str, float]
    blas: list[str]
    disk: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        machine, disk = self.machine, self.disk
        lines = [
            f"actstore {__version__}, Python {machine['python']}, {machine['platform']}",
            f"{count(machine['cores'], 'core')}, {machine['memory'] / 2**30:.1f} GiB memory",
            "",
            "packages   " + ", ".join(f"{name} {v}" for name, v in self.packages.items()),
            *(
                f"{name:10s} "
                + (
                    f"missing: {', '.join(lacks)}  (pip install 'actstore[{name}]')"
                    if lacks
                    else "there"
                )
                for name, lacks in self.extras.items()
            ),
            "",
            f"devices    {', '.join(self.devices)}",
            "products   "
            + ", ".join(f"{d} {rate:.0f} GFLOP/s" for d, rate in self.products.items()),
            *(f"           {line}" for line in self.blas),
            f"disk       {disk['folder']}: {disk['free'] / 2**30:.1f} GiB free, writes "
            f"{disk['write']:.0f} MB/s to the device, reads {disk['read']:.0f} MB/s back",
            "",
            *(f"hint: {hint}" for hint in self.hints),
            *(f"problem: {problem}" for problem in self.problems),
        ]
        found = f"{count(len(self.problems), 'problem', 'no')} found"
        if self.hints:
            found += f", {count(len(self.hints), 'hint')} for better speed"
        return "\n".join([*lines, found])


def examine(folder: Path) -> Health:
    """Look at the installation and measure the machine; takes a few seconds.

    Parameters
    ----------
    folder : path
        Where a file of 128 MiB is written, read and removed.

    Raises
    ------
    StoreError
        The folder is not there or cannot be written to.
    """
    problems: list[str] = []
    try:
        needed, extras = _requirements()
    except PackageNotFoundError:
        problems.append("actstore runs from its source without being installed; pip install -e .")
        needed, extras = {}, {}
    packages = {}
    for name, accepts in needed.items():
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            problems.append(f"{name} is missing; pip install --force-reinstall actstore")
            continue
        if not accepts(packages[name]):
            problems.append(f"{name} {packages[name]} is too old; pip install --upgrade {name}")
    hints = [
        f"{name} is set, which can halve the speed of products; unset it"
        for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
        if name in os.environ
    ]
    machine = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    lacking = {name: [p for p in parts if not _there(p)] for name, parts in extras.items()}
    rates = {name: _product_rate(name) for name in ("float32", "float64")}
    disk = _disk(folder)
    if disk["free"] < 1 << 30:
        problems.append(f"less than 1 GiB is free in {disk['folder']}")
    return Health(machine, packages, lacking, _devices(), rates, _blas(), disk, problems, hints)


def _requirements() -> tuple[dict[str, Callable[[str], bool]], dict[str, list[str]]]:
    """What is needed, each with a test of its version; and the packages of every extra."""
    from packaging.requirements import Requirement

    needed: dict[str, Callable[[str], bool]] = {}
    extras: dict[str, list[str]] = {}
    for line in requires("actstore") or ():
        one = Requirement(line)
        extra = str(one.marker).rpartition("extra == ")[2].strip("\"'") if one.marker else ""
        if not extra:
            needed[one.name] = lambda found, one=one: one.specifier.contains(  # type: ignore[misc]
                found, prereleases=True
            )
        elif extra != "dev" and one.name != "actstore":
            extras.setdefault(extra, []).append(one.name)
    return needed, extras


def _there(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _devices() -> list[str]:
    import torch

    found = ["cpu"]
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory
        found.append(f"cuda:{number} ({torch.cuda.get_device_name(number)}, {memory >> 30} GiB)")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _product_rate(dtype: str) -> float:
    """GFLOP/s, the best of three."""
    left = np.ones((PRODUCT, PRODUCT), dtype)
    out = np.empty_like(left)
    taken = []
    for _ in range(4):
        started = time.perf_counter()
        np.matmul(left, left, out=out)
        taken.append(time.perf_counter() - started)
    return 2 * PRODUCT**3 / min(taken[1:]) / 1e9


def _blas() -> list[str]:
    from threadpoolctl import threadpool_info

    return [
        f"{one['internal_api']} {one.get('version')}, kernel {one.get('architecture')}, "
        f"{count(one['num_threads'], 'thread')}"
        for one in threadpool_info()
        if one["user_api"] == "blas"
    ]


def _disk(folder: Path) -> dict[str, Any]:
    """Free bytes and rates, with a file that is removed whatever happens."""
    folder = folder.resolve()
    path = folder / f".actstore-doctor-{uuid4().hex}"
    block = np.random.default_rng(0).bytes(8 << 20)
    try:
        free = shutil.disk_usage(folder).free
        started = time.perf_counter()
        with path.open("xb") as file:
            for _ in range(DISK_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            written = time.perf_counter() - started
            if sys.platform == "linux":  # let the device answer, not the memory
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while file.read(len(block)):
                pass
        read = time.perf_counter() - started
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be measured: {error.strerror or error}; name a folder that can be "
            "written to with --disk"
        ) from None
    finally:
        path.unlink(missing_ok=True)
    megabytes = DISK_BYTES / 1e6
    return {
        "folder": str(folder),
        "free": free,
        "write": megabytes / written,
        "read": megabytes / read,
    }
