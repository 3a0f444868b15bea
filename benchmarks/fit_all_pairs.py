"""All-pairs maps with their held-out r², against scikit-learn's LinearRegression pair by pair.

The baseline is how the code of "Jump to Conclusions" (arXiv 2303.09435) does it:
``LinearRegression(fit_intercept=False)`` on float32 rows in memory, then ``r2_score``, with
BLAS's own threads or a single one, whichever is quicker. A pair's time does not depend on which
pair it is, so by default every sixth is run and the quickest of them stands for all; ``--full``
runs all and adds them up. Ours starts from a Zarr store and ends
with every map and every r²; the quickest of some repeats counts.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from threadpoolctl import threadpool_limits

import actstore
from actstore.grams import make_plan
from actstore.grams.columns import select_columns
from actstore.store import create_run
from benchmarks.harness import Measured, measure, product_rate, table


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run = write_stream(Path(folder) / "stream.zarr", options)
        train, test = (
            run.isel(sample=slice(None, options.rows)),
            run.isel(sample=slice(options.rows, None)),
        )
        report(train, test, options)


def report(train: actstore.Run, test: actstore.Run, options: argparse.Namespace) -> None:
    """Measure all candidates and print them side by side."""
    rate = product_rate()
    ways = ("all", "ordered") if options.pairs == "both" else (options.pairs,)
    ours = {
        way: measure(
            f"actstore, {'i < j' if way == 'all' else 'i ≠ j'}, from Zarr",
            lambda way=way: all_pairs(train, test, way),
            options.repeats,
        )
        for way in ways
    }
    pairs = list(itertools.combinations(range(options.layers), 2))
    fitted = {
        way: measure("", lambda way=way: fit_alone(train, way), options.repeats).seconds
        for way in ways
    }
    sample = pairs if options.full else pairs[:: max(1, len(pairs) // 13)]
    layers = sorted({layer for pair in sample for layer in pair})
    rows = [
        {layer: _rows(part, layer).astype(np.float32) for layer in layers} for part in (train, test)
    ]
    theirs = {pair: _either_way(pair, rows) for pair in sample}
    seconds = [measured.seconds for measured in theirs.values()]
    middle = np.mean if options.full else min
    their_fit = float(middle([_fit_either_way(pair, rows[0]) for pair in sample]))
    each = middle(seconds), middle([measured.cpu_seconds for measured in theirs.values()])
    exact = {pair: by_svd(train, test, *pair) for pair in sample[:: max(1, len(sample) // 4)]}
    rate = max(rate, product_rate())
    plan = make_plan(train, select_columns(train, None, None))
    flops = plan.flops * (train.n_samples + test.n_samples) / train.n_samples
    print(
        f"{options.layers} layers × {options.width} × {options.rows:,} rows ({options.dtype}), "
        f"maps and r² on {options.held_out:,} more rows\n"
        f"scikit-learn timed on {len(sample)} pairs: {min(seconds):.2f}…{max(seconds):.2f} s each"
    )
    for way, measured in ours.items():
        number = len(pairs) * (1 if way == "all" else 2)
        baseline = Measured(
            f"scikit-learn float32, {number} pairs",
            float(each[0]) * number,
            max(measured.peak_bytes for measured in theirs.values()),
            cpu_seconds=float(each[1]) * number,
        )
        scores = measured.result
        notes = [
            f"|Δr²| ≤ {_worst({p: m.result for p, m in theirs.items()}, exact):.1e}",
            f"|Δr²| ≤ {_worst(scores, exact):.1e}, a coordinate's ≤ "
            f"{_worst(scores, exact, each=True):.1e}; {flops / measured.seconds / 1e9:.0f} Gflop/s "
            f"of Gram, {100 * flops / measured.seconds / rate:.0f}% of in-memory products",
        ]
        print(table([baseline, measured], baseline, notes))
        print(
            f"the fit alone, without r²: scikit-learn {their_fit * number:.2f} s, actstore "
            f"{fitted[way]:.2f} s, {their_fit * number / fitted[way]:.1f}×"
        )
    print(
        f"Δ against numpy.linalg.lstsq in float64 on {', '.join(map(str, exact))}; in-memory "
        f"float64 products {rate / 1e9:.0f} Gflop/s; planned peak of a Gram "
        f"{plan.peak_memory / 2**20:.0f} MB"
    )


@dataclass(frozen=True)
class Score:
    """r² of a pair: by coordinate, and their mean."""

    each: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.each.mean())


def all_pairs(train: actstore.Run, test: actstore.Run, pairs: str) -> dict[tuple[int, int], Score]:
    """Every map and every r², nothing kept from a run before."""
    maps = actstore.fit(actstore.gram(train, cache=False), pairs=pairs)
    each = maps.r2(actstore.gram(test, cache=False), average=None)
    return {(i, j): Score(each.sel(source=i, target=j).values) for i, j in maps}


def fit_alone(train: actstore.Run, pairs: str) -> int:
    """Every map, from Zarr; the maps themselves are let go."""
    return len(actstore.fit(actstore.gram(train, cache=False), pairs=pairs))


def by_scikit_learn(
    train: dict[int, np.ndarray], test: dict[int, np.ndarray], i: int, j: int
) -> Score:
    """One pair as the paper's code does it."""
    model = LinearRegression(fit_intercept=False).fit(train[i], train[j])
    return Score(r2_score(test[j], model.predict(test[i]), multioutput="raw_values"))


def _either_way(pair: tuple[int, int], rows: Sequence[dict[int, np.ndarray]]) -> Measured:
    """The quicker of BLAS's own threads and a single one, which wins on a busy machine."""
    name, found = f"{pair}", []
    for threads in (None, 1):
        with threadpool_limits(threads, user_api="blas"):
            found.append(measure(name, lambda: by_scikit_learn(*rows, *pair)))
    return min(found, key=lambda measured: measured.seconds)


def _fit_either_way(pair: tuple[int, int], rows: dict[int, np.ndarray]) -> float:
    """Seconds of a pair's fit, the quicker of the two."""
    x, y = rows[pair[0]], rows[pair[1]]
    seconds = []
    for threads in (None, 1):
        with threadpool_limits(threads, user_api="blas"):
            fitted = measure("", lambda: LinearRegression(fit_intercept=False).fit(x, y))
            seconds.append(fitted.seconds)
    return min(seconds)


def by_svd(train: actstore.Run, test: actstore.Run, i: int, j: int) -> Score:
    """One pair in float64 by SVD, r² from the residuals."""
    matrix = np.linalg.lstsq(_rows(train, i), _rows(train, j), rcond=None)[0]
    y = _rows(test, j)
    residual = y - _rows(test, i) @ matrix
    return Score(1 - (residual**2).sum(axis=0) / ((y - y.mean(axis=0)) ** 2).sum(axis=0))


def _worst(
    found: dict[tuple[int, int], Score], exact: dict[tuple[int, int], Score], each: bool = False
) -> float:
    return max(
        float(np.abs(found[p].each - exact[p].each).max())
        if each
        else abs(found[p].mean - exact[p].mean)
        for p in exact
    )


def _rows(run: actstore.Run, layer: int) -> np.ndarray:
    blocks = [run.read("resid", layer, block) for block in run.row_blocks(4096)]
    return np.concatenate(blocks).astype(np.float64)


@dataclass(frozen=True)
class _Site:
    dim: str
    size: int
    width: int
    module: str = ""


def write_stream(path: Path, options: argparse.Namespace) -> actstore.Run:
    """A store of made-up activations that resemble a residual stream: each layer adds to the one
    before, variances fall off as a power of the direction's rank, means are large, and a few
    columns are hundreds of times the rest."""
    n, width = options.rows + options.held_out, options.width
    rng = np.random.default_rng(options.seed)
    builder = create_run(path, "made-up", "stream")
    ids = [np.zeros(1, np.int32)] * n
    coords = {
        "document": np.arange(n),
        "position": np.zeros(n, np.int32),
        "token_id": np.zeros(n, np.int32),
        "sequence": np.arange(n),
    }
    builder.append(coords, ids, np.arange(n))
    writer = builder.finish(
        key={"seed": options.seed, "model": {"fingerprint": "made-up"}},
        info={},
        sites={"resid": _Site("layer", options.layers, width)},
        wanted={"resid": list(range(options.layers))},
        dtype=options.dtype,
    )
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0]
    falling = np.arange(1, width + 1) ** -0.7
    scale = np.where(rng.random(width) < 0.005, 300.0, 1.0)
    offset = 3 * rng.standard_normal(width)
    mixing = rng.standard_normal((options.layers, 2, width, width)) / np.sqrt(width)
    with writer:
        for shard in writer.pending():
            rows = len(writer.shard_samples(shard)[1])
            state = (rng.standard_normal((rows, width)) * falling) @ turn * 5
            states = []
            for layer in range(options.layers):
                states.append((state + offset * (1 + layer)) * scale)
                inside = np.tanh(state @ mixing[layer, 0])
                state = state + inside @ mixing[layer, 1] + 0.3 * rng.standard_normal(state.shape)
            writer.write(shard, {"resid": np.stack(states).astype(options.dtype)})
    return writer.run


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fit_all_pairs", description=__doc__)
    add = parser.add_argument
    add("--layers", type=int, default=13)
    add("--width", type=int, default=768)
    add("--rows", type=int, default=12_000, help="rows to fit on")
    add("--held-out", type=int, default=3_000, help="further rows for r²")
    add("--dtype", default="float32", choices=("float16", "float32"), help="stored")
    add("--pairs", default="both", choices=("all", "ordered", "both"), help="i < j, i ≠ j")
    add("--repeats", type=int, default=2, help="of ours")
    add("--full", action="store_true", help="run the baseline on every pair")
    add("--seed", type=int, default=0)
    add("--folder", help="where the store is made; default: the system's temporary folder")
    return parser.parse_args(arguments)
