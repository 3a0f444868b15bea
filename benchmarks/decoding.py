"""Prediction curves of SmolLM2-135M against the machine's own matrix products.

`analysis.prediction.curves` decodes every layer of every sample twice, through its map and as it
is, into the whole vocabulary. Its operations over the time it takes, reading, softmax, ranks and
intervals included, are set beside the float32 product rate measured in the same run on matrices of
the same shape: a block of states times the unembedding.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import actstore
from analysis import prediction
from benchmarks.harness import measure
from examples import assets

GOAL_SHARE, GOAL_BYTES = 0.6, 4 << 30


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    model = actstore.load_model(assets.smollm2(), name="smollm2-135m")
    corpus = actstore.read_corpus(assets.wikipedia(), name="wiki", limit=options.samples)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        run = actstore.extract(
            model, corpus, Path(name) / "s.zarr", bos="<|endoftext|>", progress=False
        )
        layers = options.layers or model.n_blocks + 1
        view = run.sel(layer=slice(model.n_blocks + 1 - layers, model.n_blocks))
        maps = actstore.fit(view, pairs="to_last", progress=False)
        before = _rate(model, options.samples)
        found = measure(
            "curves",
            lambda: prediction.curves(view, maps, model, cluster="article", progress=False),
        )
        rate = max(before, _rate(model, options.samples))
    # each layer but the last through its map and as it is; the last, which both judge by, once
    decoded = view.n_samples * (2 * (layers - 1) + 1)
    width, vocabulary = model.width, model.vocab_size
    work = 2 * decoded * width * vocabulary + 2 * view.n_samples * (layers - 1) * width**2
    share = work / found.seconds / rate
    print(
        f"{view.n_samples:,} samples × {layers} layers × {vocabulary:,} tokens: {work:.2e} "
        f"operations, {found.seconds:.0f} s, {work / found.seconds / 1e9:.0f} of "
        f"{rate / 1e9:.0f} GFLOP/s in float32"
    )
    _goal(f"{share:.2f} of the product rate", share >= GOAL_SHARE, f"{GOAL_SHARE:g}")
    peak = found.peak_bytes
    _goal(f"{peak / 2**30:.2f} GiB added", peak < GOAL_BYTES, f"{GOAL_BYTES / 2**30:g} GiB")


def _goal(what: str, reached: bool, goal: str) -> None:
    print(f"{what}; goal {goal}: {'reached' if reached else 'NOT reached'}")


def _rate(model: Any, rows: int) -> float:
    """Operations a second of states × unembedding, all cores."""
    rng = np.random.default_rng(0)
    states = rng.standard_normal((min(rows, 1024), model.width)).astype(np.float32)
    head = rng.standard_normal((model.width, model.vocab_size)).astype(np.float32)
    out = np.empty((len(states), model.vocab_size), np.float32)
    best = measure("", lambda: np.matmul(states, head, out=out), repeats=6).seconds
    return 2 * out.size * model.width / best


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks decoding", description=__doc__)
    add = parser.add_argument
    add("--samples", type=int, default=3_000)
    add("--layers", type=int, help="the last so many only; default: all 31")
    add("--folder", help="where the store is made; default: the system's temporary folder")
    return parser.parse_args(arguments)
