"""Shuffled minibatches of a store against reading the same rows in their order, in the same run.

In order are batches as a loop over ``run.row_blocks`` has them: each read by ``run.read`` into
memory of its own and handed to torch. Also shown: whole chunks into memory that is used again,
which stays in the processor's cache and makes no batches; and single random rows, which is what
a map-style dataset would read. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

import actstore
from benchmarks.harness import cores
from benchmarks.reading import _goal, _made

GOAL = 0.5


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    layers, rows, width = options.layers, options.rows, options.width
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        run = _made(folder, folder / "flat.bin", layers, rows, width, options.dtype)
        (folder / "flat.bin").unlink()
        nbytes = rows * width * np.dtype(options.dtype).itemsize
        data = run.to_torch(layers=layers // 2, batch_size=options.batch)
        print(
            f"{rows:,} rows × {width}, {options.dtype}: {nbytes / 1e9:.2f} GB a layer, shards of "
            f"{run.info()['shard_rows']:,} rows, batches of {options.batch:,}, buffers of "
            f"{data.state_dict()['order']['buffer']:,}, {cores()} cores"
        )
        blocks = run.row_blocks(rows)
        out = np.ones((run.info()["shard_rows"], width), options.dtype)

        def in_order() -> None:
            for block in run.row_blocks(options.batch):
                torch.from_numpy(run.read("resid", layers // 2, block))

        def bare() -> None:
            for block in blocks:
                n = block.out.stop - block.out.start
                run.read("resid", layers // 2, block, out=out[:n])

        _drain(data)
        in_order()
        unshuffled = run.to_torch(layers=layers // 2, batch_size=options.batch, shuffle=False)
        found = [(0.0, 0.0)] * 4
        calls = in_order, lambda: _drain(data), lambda: _drain(unshuffled), bare
        for _ in range(options.repeats):  # in turn, so that all see the machine alike
            for at, call in enumerate(calls):
                wall, cpu = _rates(call, nbytes)
                found[at] = max(found[at][0], wall), max(found[at][1], cpu)
        names = (
            "in order, in batches",
            "run.to_torch, shuffled",
            "run.to_torch, shuffle=False",
            "in order, into the same memory",
        )
        for name, (wall, cpu) in zip(names, found, strict=True):
            print(f"{name:44}{wall:8.2f} GB/s{cpu:8.2f} GB a second of one core")
        for at in (0, 2):
            _goal(f"shuffled, of {names[at]}", found[1][0] / found[at][0], GOAL)
            _goal("  by CPU time", found[1][1] / found[at][1], GOAL)
        for workers in options.workers:
            laid_out = run.to_torch(layers=layers // 2, batch_size=options.batch, lanes=workers)
            loader = DataLoader(
                laid_out, batch_size=None, num_workers=workers, multiprocessing_context="fork"
            )
            rate = max(_warm_rate(loader, options.batch, nbytes) for _ in range(options.repeats))
            print(f"{f'DataLoader, {workers} workers, shuffled':44}{rate:8.2f} GB/s")
        print(f"{'run.resid, random rows one by one':44}{_single_rows(run, layers // 2):8.4f} GB/s")


def _drain(batches: Iterable[dict[str, torch.Tensor]]) -> None:
    for _ in batches:
        pass


def _rates(call: Callable[[], object], nbytes: int) -> tuple[float, float]:
    """GB a second of the clock, and of CPU time, which others on the machine do not touch."""
    start, cpu = time.perf_counter(), time.process_time()
    call()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    return nbytes / wall / 1e9, nbytes / used / 1e9


def _warm_rate(loader: DataLoader, batch: int, nbytes: int) -> float:
    """GB/s from the first batch on: the start of the processes is left out."""
    batches = iter(loader)
    first = next(batches)["activations"]
    start = time.perf_counter()
    _drain(batches)
    return (nbytes - first.nbytes) / (time.perf_counter() - start) / 1e9


def _single_rows(run: actstore.Run, layer: int, n: int = 200) -> float:
    one = run.sel(layer=layer)
    numbers = np.random.default_rng(0).integers(0, run.n_samples, n)
    start = time.perf_counter()
    for number in numbers.tolist():
        row = one.isel(sample=number)
        row.read("resid", layer, row.row_blocks(1)[0])
    nbytes = n * run.width("resid") * np.dtype(run.dtype).itemsize
    return nbytes / (time.perf_counter() - start) / 1e9


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks loading", description=__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=1)
    add("--rows", type=int, default=500_000)
    add("--width", type=int, default=768)
    add("--batch", type=int, default=4096)
    add("--dtype", default="float32", choices=("float16", "float32"))
    add("--workers", type=int, nargs="*", default=[1, 2])
    add("--repeats", type=int, default=5)
    add("--folder", help="where the files are made; default: the system's temporary folder")
    return parser.parse_args(arguments)
