"""Reading a store against ``np.memmap`` over the same numbers in one file, in the same run.

The file holds (layer, sample, feature) as a store does. From the page cache every byte of the
file is touched in buffers that are used again, by ``np.copyto``; the store's bytes are compared
with their checksums the first time, and not again while the file stays the same. The cold figures
(``--cold``) drop the files from the page cache first (``posix_fadvise``), and are bound by the
disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import actstore
from actstore.store import create_run
from benchmarks.harness import cores

GOAL_MEMMAP = 4 / 14
GOAL_COLD = 0.9


class _Site:
    dim, module = "layer", "made.up"

    def __init__(self, size: int, width: int) -> None:
        self.size, self.width = size, width


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    layers, rows, width = options.layers, options.rows, options.width
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        flat = folder / "flat.bin"
        run = _made(folder, flat, layers, rows, width, options.dtype)
        memmap = np.memmap(flat, options.dtype, "r", shape=(layers, rows, width))
        layer_bytes = rows * width * memmap.itemsize
        print(
            f"{layers} layers × {rows:,} rows × {width}, {options.dtype}: "
            f"{layers * layer_bytes / 1e9:.2f} GB, shards of {run.info()['shard_rows']:,} rows, "
            f"{cores()} cores"
        )
        middle = layers // 2
        out = np.zeros((rows, width), options.dtype) + 1  # pages that are there already
        blocks = run.row_blocks(rows)
        views = [out[block.out] for block in blocks]

        def ours(layer: int) -> None:
            for block, view in zip(blocks, views, strict=True):
                run.read("resid", layer, block, view)

        def mapped(layer: int) -> None:
            np.copyto(out, memmap[layer])

        def checked(layer: int) -> None:
            again = actstore.open(folder / "s.zarr")["model", "corpus"]
            for block, view in zip(blocks, views, strict=True):
                again.read("resid", layer, block, view)

        ours(middle)
        np.testing.assert_array_equal(out, memmap[middle])
        one, first, theirs = _in_turn(
            [lambda: ours(middle), lambda: checked(middle), lambda: mapped(middle)], layer_bytes
        )
        print(f"{'one layer, np.memmap':44}{theirs:8.2f} GB/s")
        print(f"{'one layer, opened and read, checksums compared':44}{first:6.2f} GB/s")
        print(f"{'one layer, run.read, again':44}{one:8.2f} GB/s")
        _goal("one layer, of np.memmap", one / theirs, GOAL_MEMMAP)
        _goal("one layer, just opened, of np.memmap", first / theirs, GOAL_MEMMAP)

        def every() -> None:
            for layer in range(layers):
                ours(layer)

        def every_mapped() -> None:
            for layer in range(layers):
                mapped(layer)

        every()
        whole, whole_mapped = _in_turn([every, every_mapped], layers * layer_bytes, repeats=3)
        print(f"{'all layers, np.memmap':44}{whole_mapped:8.2f} GB/s")
        print(f"{'all layers, run.read':44}{whole:8.2f} GB/s  {whole / whole_mapped:.2f} of it")
        lazy = _rate(lambda: run.resid.sel(layer=middle).values, layer_bytes, 3)
        print(
            f"{'one layer, run.resid.sel(layer=…).values':44}{lazy:8.2f} GB/s  (dask, new memory)"
        )
        fresh = _rate(lambda: np.array(memmap[middle]), layer_bytes, 3)
        print(f"{'one layer, np.array(memmap[layer])':44}{fresh:8.2f} GB/s  (new memory)")
        if options.cold:
            del memmap  # what is mapped stays in the cache
            _cold(folder, flat, layers, ours, out)


def _cold(
    folder: Path, flat: Path, layers: int, ours: Callable[[int], None], out: np.ndarray
) -> None:
    chunks = sorted((folder / "s.zarr/model/corpus/resid").glob("c.*"))

    def whole_file() -> None:
        with open(flat, "rb", buffering=0) as file:
            for _ in range(layers):
                file.readinto(memoryview(out.view(np.uint8)))  # type: ignore[arg-type]

    def whole_store() -> None:
        for layer in range(layers):
            ours(layer)

    rates = [0.0, 0.0]
    for _ in range(3):
        for at, (files, call) in enumerate((([flat], whole_file), (chunks, whole_store))):
            _forget(files)
            rates[at] = max(rates[at], _rate(call, layers * out.nbytes, 1))
    print(f"{'cold: the flat file, read in sequence':44}{rates[0]:8.2f} GB/s")
    print(f"{'cold: all layers, run.read':44}{rates[1]:8.2f} GB/s")
    _goal("cold, of the disk's rate", rates[1] / rates[0], GOAL_COLD)


def _forget(paths: Sequence[Path]) -> None:
    """Drop files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _made(folder: Path, flat: Path, layers: int, rows: int, width: int, dtype: str) -> actstore.Run:
    """A run of made-up rows, and the same numbers in one flat file."""
    numbers = np.arange(rows)
    builder = create_run(folder / "s.zarr", "model", "corpus")
    builder.append(
        {"sequence": numbers, "position": np.zeros(rows, np.int32)},
        [np.zeros(1, np.int32)] * rows,
        numbers,
    )
    site, wanted = _Site(layers, width), {"resid": list(range(layers))}
    rng = np.random.default_rng(0)
    out = np.memmap(flat, dtype, "w+", shape=(layers, rows, width))
    with builder.finish(
        key={}, info={}, sites={"resid": site}, wanted=wanted, dtype=dtype
    ) as writer:
        for shard in range(writer.n_shards):
            start = shard * writer.shard_rows
            values = rng.standard_normal((layers, writer.shard_size(shard), width), np.float32)
            out[:, start : start + values.shape[1]] = values
            writer.write(shard, {"resid": values})
        out.flush()
        return writer.run


def _in_turn(calls: Sequence[Callable[[], object]], nbytes: int, repeats: int = 7) -> list[float]:
    best = [0.0] * len(calls)
    for _ in range(repeats):
        best = [max(b, _rate(call, nbytes, 1)) for b, call in zip(best, calls, strict=True)]
    return best


def _rate(call: Callable[[], object], nbytes: int, repeats: int) -> float:
    """GB/s of the best of some calls."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return nbytes / least / 1e9


def _goal(what: str, ratio: float, goal: float) -> None:
    told = "reached" if ratio >= goal else "NOT reached"
    print(f"{'  ' + what:44}{ratio:8.2f}       goal {goal:.2f}: {told}")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks reading", description=__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=13)
    add("--rows", type=int, default=60_000)
    add("--width", type=int, default=768)
    add("--dtype", default="float16", choices=("float16", "float32"))
    add("--cold", action="store_true", help="also from the disk, with the page cache dropped")
    add("--folder", help="where the files are made; default: the system's temporary folder")
    return parser.parse_args(arguments)
