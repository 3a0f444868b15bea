"""What every benchmark needs: time and memory of a call, the machine's limit, a table."""

from __future__ import annotations

import gc
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

SLOWING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def at_full_speed() -> None:
    """Start again without the settings that hold OpenBLAS to another machine's kernel."""
    if any(name in os.environ for name in SLOWING):
        environment = {k: v for k, v in os.environ.items() if k not in SLOWING}
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def machine() -> str:
    """Cores, kernels and versions, in one line."""
    import scipy.linalg  # noqa: F401  (loads its own OpenBLAS)

    kernels = dict.fromkeys(
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip()
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    )
    return (
        f"{cores()} cores, load {os.getloadavg()[0]:.1f}, python {platform.python_version()}, "
        f"numpy {np.__version__}, {', '.join(kernels)}"
    )


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Measured:
    """One candidate's cost; on a shared machine CPU time is the steadier figure."""

    name: str
    seconds: float
    peak_bytes: int
    result: Any = None
    cpu_seconds: float = 0.0


def measure(name: str, call: Callable[[], Any], repeats: int = 1) -> Measured:
    """Least wall and CPU time of some calls, what the quickest gave, and the most memory added
    while the first ran."""
    gc.collect()
    best, cpu, peak, result = float("inf"), float("inf"), 0, None
    for number in range(repeats):
        with _PeakMemory() as memory:
            started, cpu_started = time.perf_counter(), time.process_time()
            found = call()
            seconds = time.perf_counter() - started
            cpu = min(cpu, time.process_time() - cpu_started)
        if seconds < best:
            best, result = seconds, found
        del found
        peak = memory.added if number == 0 else peak
    return Measured(name, best, peak, result, cpu)


class _PeakMemory:
    """Samples resident memory every few milliseconds."""

    def __enter__(self) -> _PeakMemory:
        self._start = self._peak = _resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def added(self) -> int:
        return self._peak - self._start

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self._peak = max(self._peak, _resident())


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass(frozen=True)
class Limit:
    """Operations a second of in-memory matrix products, of the clock and of CPU time.

    On a machine that others use too, the share of the second is the steadier figure.
    """

    by_clock: float
    by_cpu: float

    def __or__(self, other: Limit) -> Limit:
        """The better of two measurements."""
        return Limit(max(self.by_clock, other.by_clock), max(self.by_cpu, other.by_cpu))

    def share(self, operations: float, found: Measured) -> str:
        """What share of it a call reached."""
        clock = operations / found.seconds / self.by_clock
        cpu = operations / found.cpu_seconds / self.by_cpu
        return f"{100 * clock:.0f}% of the limit by the clock, {100 * cpu:.0f}% by CPU time"


def limit(dtype: str = "float64", size: int = 2304, repeats: int = 4) -> Limit:
    """What all cores reach together, the better of BLAS's own threads and one product a core."""
    rng = np.random.default_rng(0)
    operands = [
        [rng.standard_normal((size, size)).astype(dtype) for _ in range(3)] for _ in range(cores())
    ]

    def multiply(parts: list[np.ndarray]) -> None:
        np.matmul(parts[0], parts[1], out=parts[2])

    def together() -> None:
        with threadpool_limits(1, user_api="blas"):
            list(pool.map(multiply, operands))

    def own_threads() -> None:
        for parts in operands:
            multiply(parts)

    with ThreadPoolExecutor(cores()) as pool:
        found = [measure("", call, repeats) for call in (together, own_threads)]
    operations = 2 * size**3 * cores()
    return Limit(
        operations / min(one.seconds for one in found),
        operations / min(one.cpu_seconds for one in found),
    )


def product_rate(dtype: str = "float64") -> float:
    """Operations a second, by the clock."""
    return limit(dtype).by_clock


def goal(what: str, value: float, wanted: float, *, most: bool = False) -> str:
    """A figure beside the goal set for it; `most` where it may not be larger."""
    reached = value <= wanted if most else value >= wanted
    bound = "at most" if most else "at least"
    told = "reached" if reached else "NOT reached"
    return f"{value:.2f} {what}; goal {bound} {wanted:g}: {told}"


def table(rows: Sequence[Measured], baseline: Measured, notes: Sequence[str]) -> str:
    """Candidates with their time, how many times quicker than the baseline, and memory."""
    lines = [f"{'':34}{'seconds':>9}{'ratio':>8}{'CPU s':>8}{'memory':>10}"]
    for row, note in zip(rows, notes, strict=True):
        ratio = "1" if row is baseline else f"{baseline.seconds / row.seconds:.1f}×"
        lines.append(
            f"{row.name:34}{row.seconds:9.2f}{ratio:>8}{row.cpu_seconds:8.2f}"
            f"{row.peak_bytes / 2**20:7.0f} MB  {note}"
        )
    return "\n".join(lines)
