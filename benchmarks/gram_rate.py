"""A Gram end to end, from Zarr, as a share of the machine's own in-memory matrix products.

The limit is measured in the same run, in the same dtype and with as many threads, before and
after; the best of each counts. Operations are n·N², as a symmetric product is counted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import actstore
from actstore.grams import plan_gram
from benchmarks.harness import cores, goal, limit, measure
from benchmarks.streams import write_stream

GOALS = {12_000: 0.7, 60_000: 0.8}


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    most = max(options.rows)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        place = Path(folder) / "s.zarr"
        run = write_stream(place, options.layers, options.width, most, options.dtype)
        columns = options.layers * options.width
        print(f"{options.layers} layers × {options.width}, {options.dtype} rows, {cores()} threads")
        for rows in sorted(options.rows):
            for precision in options.precision:
                _one(run.isel(sample=slice(0, rows)), rows, columns, precision, options.repeats)


def _one(run: actstore.Run, rows: int, columns: int, precision: str, repeats: int) -> None:
    dtype = "float64" if precision == "float64" else "float32"
    most = limit(dtype)
    found = measure(
        "", lambda: actstore.gram(run, precision=precision, cache=False, progress=False), repeats
    )
    most |= limit(dtype)
    operations = rows * columns**2
    plan = plan_gram(run, precision=precision, cache=False)
    print(
        f"{rows:,} rows, {precision}: {found.seconds:.2f} s, {found.cpu_seconds:.2f} s of CPU, "
        f"{operations / found.seconds / 1e9:.0f} of {most.by_clock / 1e9:.0f} Gflop/s; memory "
        f"{found.peak_bytes / 2**20:.0f} MB, planned {plan.peak_memory / 2**20:.0f} MB"
    )
    print(f"  {most.share(operations, found)}")
    if rows in GOALS and precision == "float64":
        share = operations / found.seconds / most.by_clock
        by_cpu = operations / found.cpu_seconds / most.by_cpu
        print(f"  {goal('of the limit by the clock', share, GOALS[rows])}")
        print(f"  {goal('of the limit by CPU time', by_cpu, GOALS[rows])}")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gram_rate", description=__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=13)
    add("--width", type=int, default=768)
    add("--rows", type=int, nargs="+", default=[12_000, 60_000])
    add("--dtype", default="float16", choices=("float16", "float32"), help="stored")
    add("--precision", nargs="+", default=["float64", "float32"], help="of the products")
    add("--repeats", type=int, default=2)
    add("--folder", help="where the store is made; default: the system's temporary folder")
    return parser.parse_args(arguments)
