"""Shuffled minibatches of a store against reading the same rows in their order, in the same run.

What each line is, of files in the page cache:

* *in order, in batches*: a loop over ``run.row_blocks``, each batch read by ``run.read`` into
  memory of its own. The allocator hands out the same memory again, so that a batch of some MB
  stays in the processor's cache: every byte crosses main memory once.
* *in order, into a buffer*: the same rows into one buffer of the size that shuffling takes, which
  no cache holds: every byte crosses it twice. A shuffle begins with this.
* *rows at random out of a buffer*: batches gathered by ``np.take`` from rows in memory, no file
  read. A shuffle ends with this.
* *both, one after the other*: the two times added, the least that one core takes to shuffle.
* *run.to_torch*, shuffled and not: whole chunks into a buffer by a thread, batches out of it.
* single random rows, which is what a map-style dataset would read.

With ``--cold`` also from the disk, with the files dropped from the page cache before each: there
both ways wait for the disk.
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
from benchmarks.reading import _forget, _goal, _made

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
        middle = layers // 2
        data = run.to_torch(layers=middle, batch_size=options.batch)
        print(
            f"{rows:,} rows × {width}, {options.dtype}: {nbytes / 1e9:.2f} GB a layer, shards of "
            f"{run.info()['shard_rows']:,} rows, batches of {options.batch:,}, buffers of "
            f"{data.state_dict()['order']['buffer']:,}, {cores()} cores"
        )
        held = min(data.state_dict()["order"]["buffer"], rows)
        buffer = np.ones((held, width), options.dtype)
        gathered = np.ones((options.batch, width), options.dtype)
        chosen = np.random.default_rng(0).integers(0, held, rows)

        def in_order() -> None:
            for block in run.row_blocks(options.batch):
                torch.from_numpy(run.read("resid", middle, block))

        def into_buffer() -> None:
            for first in range(0, rows, held):
                part = run.isel(sample=slice(first, first + held))
                for block in part.row_blocks(held):
                    part.read("resid", middle, block, out=buffer[block.out])

        def at_random() -> None:
            for first in range(0, rows, options.batch):
                places = chosen[first : first + options.batch]
                np.take(buffer, places, axis=0, out=gathered[: len(places)], mode="clip")

        unshuffled = run.to_torch(layers=middle, batch_size=options.batch, shuffle=False)
        calls: dict[str, Callable[[], None]] = {
            "in order, in batches": in_order,
            "in order, into a buffer": into_buffer,
            "rows at random out of a buffer": at_random,
            "run.to_torch, shuffled": lambda: _drain(data),
            "run.to_torch, shuffle=False": lambda: _drain(unshuffled),
        }
        _drain(data)  # checksums are compared once
        found = dict.fromkeys(calls, (0.0, 0.0))
        for _ in range(options.repeats):  # in turn, so that all see the machine alike
            for name, call in calls.items():
                wall, cpu = _rates(call, nbytes)
                found[name] = max(found[name][0], wall), max(found[name][1], cpu)
        ordered, filled, taken, shuffled, plain = found.values()
        both = tuple(1 / (1 / one + 1 / two) for one, two in zip(filled, taken, strict=True))
        for name, (wall, cpu) in [*found.items(), ("both, one after the other", both)]:
            print(f"{name:44}{wall:8.2f} GB/s{cpu:8.2f} GB a second of one core")
        for name, other in (
            ("in order, in batches", ordered),
            ("in order, into a buffer", filled),
            ("run.to_torch, shuffle=False", plain),
        ):
            _goal(f"shuffled, of {name}", shuffled[0] / other[0], GOAL)
            _goal("  by CPU time", shuffled[1] / other[1], GOAL)
        print(f"{'  shuffled, of both, by CPU time':44}{shuffled[1] / both[1]:8.2f}")
        if options.cold:
            chunks = sorted((folder / "s.zarr/model/corpus/resid").glob("c.*"))
            rates = [_cold_rate(call, chunks, nbytes) for call in (in_order, lambda: _drain(data))]
            print(f"{'cold: in order, in batches':44}{rates[0]:8.2f} GB/s")
            print(f"{'cold: run.to_torch, shuffled':44}{rates[1]:8.2f} GB/s")
            _goal("cold: shuffled, of in order", rates[1] / rates[0], GOAL)
        for workers in options.workers:
            laid_out = run.to_torch(layers=middle, batch_size=options.batch, lanes=workers)
            loader = DataLoader(
                laid_out, batch_size=None, num_workers=workers, multiprocessing_context="fork"
            )
            rate = max(_warm_rate(loader, options.batch, nbytes) for _ in range(options.repeats))
            print(f"{f'DataLoader, {workers} workers, shuffled':44}{rate:8.2f} GB/s")
        print(f"{'run.resid, random rows one by one':44}{_single_rows(run, middle):8.4f} GB/s")


def _drain(batches: Iterable[dict[str, torch.Tensor]]) -> None:
    for _ in batches:
        pass


def _rates(call: Callable[[], object], nbytes: int) -> tuple[float, float]:
    """GB a second of the clock, and of CPU time, which others on the machine do not touch."""
    start, cpu = time.perf_counter(), time.process_time()
    call()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    return nbytes / wall / 1e9, nbytes / used / 1e9


def _cold_rate(call: Callable[[], object], files: Sequence[Path], nbytes: int) -> float:
    best = 0.0
    for _ in range(3):
        _forget(files)
        best = max(best, _rates(call, nbytes)[0])
    return best


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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks loading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--layers", type=int, default=1)
    add("--rows", type=int, default=500_000)
    add("--width", type=int, default=768)
    add("--batch", type=int, default=4096)
    add("--dtype", default="float32", choices=("float16", "float32"))
    add("--workers", type=int, nargs="*", default=[1, 2])
    add("--repeats", type=int, default=5)
    add("--cold", action="store_true", help="also from the disk, with the page cache dropped")
    add("--folder", help="where the files are made; default: the system's temporary folder")
    return parser.parse_args(arguments)
