"""All maps i ≠ j with their held-out r², against what people run pair by pair.

Beside ours stand ``numpy.linalg.lstsq``, scikit-learn's ``LinearRegression(fit_intercept=False)``
with ``r2_score`` (as the code of "Jump to Conclusions", arXiv 2303.09435, has it) and
``torch.linalg.lstsq`` by gelsy, all from rows in memory. A pair's time does not depend on which
pair it is, so some are run, and the quickest of them stands for all; ``--full`` runs every pair and
takes the mean. Ours starts from a Zarr store and ends with every map and every r². Accuracy is the
largest difference from numpy's float64 SVD on the pairs that were run.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

import actstore
from benchmarks.baselines import WAYS, measure_pair
from benchmarks.harness import Measured, goal, limit, measure
from benchmarks.streams import SHAPES, write_stream

GOAL_OF_THE_FAST_WAY = 15
EXACT = "numpy lstsq float64"
STAGES = ("Gram", "maps", "Gram of the held-out rows", "r²")

Pair = tuple[int, int]


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    if options.store is not None:
        run = actstore.open(options.store)[tuple(options.run.split("/"))].sel(site="resid")
        rows = min(options.rows or run.n_samples, run.n_samples * 4 // 5)
        _report(run, rows, options)
        return
    shapes = [tuple(options.custom)] if options.custom else [SHAPES[s] for s in options.shape]
    for layers, width, rows in shapes:
        rows = options.rows or rows
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            most = rows + max(rows // 4, 1)
            place = Path(folder) / "s.zarr"
            run = write_stream(place, layers, width, most, options.dtype, options.seed)
            _report(run, rows, options)


def _report(run: actstore.Run, rows: int, options: argparse.Namespace) -> None:
    """Measure all candidates and print them side by side."""
    train, test = run.isel(sample=slice(0, rows)), run.isel(sample=slice(rows, None))
    layers, width = run.sites["resid"], run.width("resid")
    pairs = list(itertools.permutations(layers, 2))
    chosen = pairs if options.full else pairs[:: max(1, len(pairs) // options.sample)]
    print(
        f"\n{len(layers)} layers × {width}, {run.dtype}: {len(pairs)} maps i ≠ j on {rows:,} rows, "
        f"r² on {test.n_samples:,} more"
    )
    most = limit()
    ours = {
        precision: measure(
            f"actstore {precision}, from Zarr",
            partial(all_pairs, train, test, precision),
            options.repeats,
        )
        for precision in options.precision
    }
    theirs: dict[str, dict[Pair, Measured]] = {name: {} for name in WAYS}
    for i, j in chosen:
        given = [_rows(part, layer) for part in (train, test) for layer in (i, j)]
        for name in WAYS:
            theirs[name][i, j] = measure_pair(name, given)
    most |= limit()
    exact = {pair: found.result for pair, found in theirs[EXACT].items()}
    _print_ours(ours, exact, train, test, most.by_clock)
    width = run.width("resid")
    work = (rows + test.n_samples) * (len(layers) * width) ** 2 + 3 * len(pairs) * width**3
    least = work / most.by_clock
    print(f"at the limit of float64 products, Grams, maps and r² would take {least:.2f} s")
    _print_theirs(ours, theirs, exact, len(pairs), options.full, least)


def _print_ours(
    ours: dict[str, Measured],
    exact: dict[Pair, np.ndarray],
    train: actstore.Run,
    test: actstore.Run,
    most: float,
) -> None:
    columns = len(train.sites["resid"]) * train.width("resid")
    operations = (train.n_samples + test.n_samples) * columns**2
    for found in ours.values():
        share = operations / found.seconds / most
        print(
            f"{found.name:34}{found.seconds:8.2f} s, {found.cpu_seconds:.2f} s of CPU, "
            f"{found.peak_bytes / 2**20:.0f} MB; {_told(found.result[0], exact)}; the Grams alone "
            f"would take {100 * share:.0f}% of that time at the limit"
        )
        stages = found.result[1].items()
        print("  " + ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in stages))


def _print_theirs(
    ours: dict[str, Measured],
    theirs: dict[str, dict[Pair, Measured]],
    exact: dict[Pair, np.ndarray],
    pairs: int,
    full: bool,
    least: float,
) -> None:
    middle = np.mean if full else min
    for name, found in theirs.items():
        seconds = [one.seconds for one in found.values()]
        whole = float(middle(seconds)) * pairs
        cpu = float(middle([one.cpu_seconds for one in found.values()])) * pairs
        print(
            f"{name:34}{whole:8.2f} s, {cpu:.2f} s of CPU for {pairs} pairs, of {len(found)} that "
            f"took {min(seconds):.2f}…{max(seconds):.2f} s; "
            f"{_told({pair: one.result for pair, one in found.items()}, exact)}"
        )
        print(f"  {whole / least:.2f} × quicker at the limit, if nothing but products took time")
        for precision, mine in ours.items():
            wanted = WAYS[name].goal
            if precision != "float64":
                if name != "scikit-learn float32":
                    continue
                wanted = GOAL_OF_THE_FAST_WAY
            print(f"  {goal(f'× quicker, {precision}', whole / mine.seconds, wanted)}")
            alone = mine.result[1]["Gram"] + mine.result[1]["maps"]
            print(f"  {whole / alone:.2f} × quicker without our r², {precision}")
            print(f"  {goal(f'× less CPU time, {precision}', cpu / mine.cpu_seconds, wanted)}")


def _told(found: dict[Pair, np.ndarray], exact: dict[Pair, np.ndarray]) -> str:
    each = max(float(np.abs(found[pair] - truth).max()) for pair, truth in exact.items())
    mean = max(abs(float(found[p].mean() - truth.mean())) for p, truth in exact.items())
    return f"|Δr²| ≤ {mean:.1e}, a coordinate's ≤ {each:.1e}"


def all_pairs(
    train: actstore.Run, test: actstore.Run, precision: str
) -> tuple[dict[Pair, np.ndarray], dict[str, float]]:
    """Every map and every r² by coordinate, nothing kept from a run before; seconds by stage."""
    options = {"precision": precision, "cache": False, "progress": False}
    clock = [time.perf_counter()]
    moments = actstore.gram(train, **options)
    clock.append(time.perf_counter())
    maps = actstore.fit(moments, pairs="ordered", lazy=False)
    clock.append(time.perf_counter())
    evaluation = actstore.gram(test, **options)
    clock.append(time.perf_counter())
    each = maps.r2(evaluation, average=None)
    clock.append(time.perf_counter())
    stages = dict(zip(STAGES, np.diff(clock).tolist(), strict=True))
    return {
        (int(i), int(j)): each.sel(source=i, target=j).values  # type: ignore[arg-type]
        for i, j in maps
    }, stages


def _rows(run: actstore.Run, layer: int) -> np.ndarray:
    blocks = [run.read("resid", layer, block) for block in run.row_blocks(4096)]
    return np.concatenate(blocks).astype(np.float64)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fit_all_pairs", description=__doc__)
    add = parser.add_argument
    add("--shape", nargs="+", default=["768"], choices=SHAPES, help="by width; default 768")
    add("--custom", type=int, nargs=3, metavar=("LAYERS", "WIDTH", "ROWS"), help="another shape")
    add("--store", help="a store with real activations instead, such as the demo's")
    add("--run", default="smollm2-135m/wiki", help="its run; four fifths are fitted on")
    add("--rows", type=int, help="rows to fit on")
    add("--dtype", default="float16", choices=("float16", "float32"), help="stored")
    add("--precision", nargs="+", default=["float64", "sketch"], help="of ours")
    add("--repeats", type=int, default=2, help="of ours")
    add("--sample", type=int, default=4, help="pairs that the others run; default 4")
    add("--full", action="store_true", help="run the others on every pair")
    add("--seed", type=int, default=0)
    add("--folder", help="where the store is made; default: the system's temporary folder")
    return parser.parse_args(arguments)
