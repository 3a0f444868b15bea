"""Peak memory of a Gram: flat as rows grow, what the plan says, and a seventh of it.

Each is computed in a process of its own. Memory is what the process holds beyond what it held
before, resident, sampled every few milliseconds; pages of the store's files that the system keeps
in its cache are not the process's. What is whole stays in memory; what is tiled ends on disk, and
the writing counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import actstore
from actstore.grams import plan_gram
from benchmarks.harness import goal, measure
from benchmarks.streams import write_stream

SLACK = 200e6


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    if options.child:
        print(json.dumps(_child(*options.child)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        most = options.rows * options.times
        write_stream(folder / "flat.zarr", options.layers, options.width, most, "float16")
        few, many = (_in_a_process(folder / "flat.zarr", rows) for rows in (options.rows, most))
        print(f"{options.layers} layers × {options.width}, float16 rows")
        for rows, found in ((options.rows, few), (most, many)):
            print(
                f"  {rows:,} rows: {found['seconds']:.2f} s, peak {found['peak'] / 1e6:.0f} MB, "
                f"planned {found['planned'] / 1e6:.0f} MB"
            )
        grown = many["peak"] / few["peak"]
        print(f"  {goal(f'× the memory for {options.times}× the rows', grown, 1.1, most=True)}")
        above = (max(few["peak"], many["peak"]) - many["planned"]) / 1e6
        print(f"  {goal('MB above the plan', above, SLACK / 1e6, most=True)}")
        _seventh(folder, options)


def _seventh(folder: Path, options: argparse.Namespace) -> None:
    """One pass, and passes within a seventh of its memory."""
    layers, width, rows = options.tiled
    run = write_stream(folder / "tiled.zarr", layers, width, rows, "float16")
    planned = plan_gram(run).peak_memory
    one = _in_a_process(folder / "tiled.zarr", rows)
    few = _in_a_process(folder / "tiled.zarr", rows, planned // options.share)
    print(f"{layers} layers × {width} × {rows:,} rows, with 1/{options.share} of the memory")
    for told, found in (("whole", one), ("tiled", few)):
        print(
            f"  {told}: {found['seconds']:.2f} s ({found['cpu']:.2f} s of CPU), {found['passes']} "
            f"passes, each layer read {found['readings']:.3g} times, peak "
            f"{found['peak'] / 1e6:.0f} MB, planned {found['planned'] / 1e6:.0f} MB"
        )
    print(f"  {goal('× the time', few['seconds'] / one['seconds'], 1.4, most=True)}")
    print(f"  {goal('× the CPU time', few['cpu'] / one['cpu'], 1.4, most=True)}")
    above = (few["peak"] - few["planned"]) / 1e6
    print(f"  {goal('MB above the plan', above, SLACK / 1e6, most=True)}")


def _in_a_process(store: Path, rows: int, memory: int | None = None) -> dict[str, Any]:
    call = [sys.executable, "-m", "benchmarks", "memory", "--child", str(store), str(rows)]
    done = subprocess.run(
        [*call, str(memory or "")], capture_output=True, text=True, check=True, timeout=3_600
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _child(store: str, rows: str, memory: str) -> dict[str, Any]:
    budget = int(memory) if memory else None
    run = actstore.open(store)["made-up", "stream"].isel(sample=slice(0, int(rows)))
    warm = run.isel(sample=slice(0, 64)).sel(layer=[0])
    actstore.gram(warm, cache=False, progress=False)  # what is loaded once
    plan = plan_gram(run, memory=budget)
    call = partial(actstore.gram, run, memory=budget, cache=budget is not None, progress=False)
    found = measure("", call)
    return {
        "seconds": found.seconds,
        "cpu": found.cpu_seconds,
        "peak": found.peak_bytes,
        "planned": plan.peak_memory,
        "passes": plan.passes,
        "readings": plan.readings,
    }


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=8)
    add("--width", type=int, default=768)
    add("--rows", type=int, default=8_000, help="the fewest")
    add("--times", type=int, default=16, help="how many times as many are the most")
    add("--tiled", type=int, nargs=3, default=[25, 1024, 10_000], help="layers, width, rows")
    add("--share", type=int, default=7, help="into how much less memory")
    add("--folder", help="where the stores are made; default: the system's temporary folder")
    add("--child", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)
