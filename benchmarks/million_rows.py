"""Time grows as the rows do: slices timed, and a million rows of 31 × 576 extrapolated.

Rows are made as they are read, from a pool in memory, so that there can be any number of them. The
slices are timed in turn, each one's best counts, and a line through them is carried on to the
whole; its interval is that of the slope between any two slices. ``--complete`` runs it all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import combinations

import numpy as np

from actstore.grams import gram, plan_gram
from benchmarks.harness import Measured, cores, goal, limit, measure
from benchmarks.streams import MadeUpRows

HOURS = 2.0


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    layers, width = options.layers, options.width

    def run_of(rows: int) -> MadeUpRows:
        return MadeUpRows(layers, width, rows)

    def add_up(rows: int, progress: bool | None = None) -> None:
        gram(run_of(rows), precision=options.precision, progress=progress)  # and not kept

    whole = plan_gram(run_of(options.rows), precision=options.precision)
    print(whole.describe())
    most = limit("float64" if options.precision == "float64" else "float32")
    best: dict[int, Measured] = {}
    for _ in range(options.repeats):
        for rows in options.slices:
            found = measure(f"{rows:,}", partial(add_up, rows, progress=False))
            if rows not in best or found.seconds < best[rows].seconds:
                best[rows] = found
    columns = layers * width
    for rows, found in best.items():
        print(
            f"{rows:>9,} rows: {found.seconds:7.2f} s, {found.cpu_seconds:7.2f} s of CPU; "
            f"{most.share(rows * columns**2, found)}"
        )
    for clock in ("seconds", "cpu_seconds"):
        _carry_on(best, options.rows, clock)
    if options.complete:
        found = measure("", lambda: add_up(options.rows))
        print(
            f"all {options.rows:,} rows: {found.seconds / 3600:.2f} h, "
            f"{found.cpu_seconds / 3600:.2f} h of CPU, {cores()} threads, "
            f"{found.peak_bytes / 2**30:.2f} GiB; "
            f"{most.share(options.rows * columns**2, found)}"
        )
        print(goal("hours", found.seconds / 3600, HOURS, most=True))


def _carry_on(best: dict[int, Measured], rows: int, clock: str) -> None:
    """The line through the slices at all rows, and how straight it is."""
    x = np.array(sorted(best), float)
    y = np.array([getattr(best[int(n)], clock) for n in x])
    slope, start = np.polyfit(x, y, 1)
    slopes = [(y[b] - y[a]) / (x[b] - x[a]) for a, b in combinations(range(len(x)), 2)]
    bend = (y[-1] - y[-2]) / (x[-1] - x[-2]) / ((y[1] - y[0]) / (x[1] - x[0]))
    low, high = (start + s * rows for s in (min(slopes), max(slopes)))
    kind = "the clock" if clock == "seconds" else "CPU time"
    print(
        f"by {kind}: {rows:,} rows take {(start + slope * rows) / 60:.0f} minutes "
        f"({low / 60:.0f} to {high / 60:.0f}); a row costs {bend:.2f} of what it did at first"
    )
    if clock == "seconds":
        print(goal("hours", (start + slope * rows) / 3600, HOURS, most=True))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks million_rows", description=__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=31)
    add("--width", type=int, default=576)
    add("--rows", type=int, default=1_000_000)
    add("--slices", type=int, nargs="+", default=[8_192, 16_384, 32_768])
    add("--precision", default="float64", choices=("float64", "float32", "sketch"))
    add("--repeats", type=int, default=1)
    add("--complete", action="store_true", help="run all rows as well")
    options = parser.parse_args(arguments)
    if len(options.slices) < 3:
        parser.error("at least three slices are needed to see whether time is a line")
    return options
