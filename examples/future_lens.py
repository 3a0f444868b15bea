"""What one state of SmolLM2 says about tokens further on: ``python -m examples.future_lens``.

All tokens of some Wikipedia sentences are stored at every fifth layer; affine maps from each to
the last layer k tokens on ("Future Lens", Pal et al. 2023, arXiv 2311.04897) are fitted on the
sentences of most articles, and judged on those of the others beside a bigram table. A second call
reuses the store. A few minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import actstore
from actstore.wording import count
from analysis import future_lens, report, results
from examples import assets

RIDGES = (0.0, 1e2, 1e4)


def main() -> None:
    """Extract, fit, judge, and write the report."""
    options = _options()
    options.output.mkdir(parents=True, exist_ok=True)
    model = actstore.load_model(assets.smollm2(), name="smollm2-135m")
    records = [json.loads(line) for line in assets.wikipedia().read_text("utf-8").splitlines()]
    spread = records[:: max(len(records) // options.limit, 1)][: options.limit]  # over all articles
    run = actstore.extract(
        model,
        actstore.read_corpus(spread, name="wiki"),
        options.output / "future.zarr",
        layers=sorted({*options.layers, model.n_blocks}),
        positions="all",
        bos="<|endoftext|>",
    )
    train, held_out = run.split(0.25, by="article", seed=options.seed)
    found = future_lens.curves(
        train, held_out, model, offsets=options.offsets, ridge=RIDGES, cluster="article"
    )
    results.save(found, options.output / "results" / "future-lens.zarr")
    page = report.build(
        options.output / "report.html",
        [found],
        title="What does a state of SmolLM2-135M say about later tokens?",
        command="python -m examples.future_lens",
    )
    print(f"{count(train.n_samples, 'token')} to fit on, {held_out.n_samples:,} of other articles")
    for offset in options.offsets:
        at = found.sel(offset=offset, k=1)
        for layer in found.layer.values.tolist():
            value, low, high = (
                float(at.sel(layer=layer)[f"precision_gain{end}"]) * 100
                for end in ("", "_low", "_high")
            )
            print(
                f"{offset} ahead, layer {layer:2}: {value:+.1f} points [{low:.1f}, {high:.1f}] of "
                "Precision@1 over the bigram"
            )
    print(*report.findings([found]), f"report  {page}", sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--output", type=Path, default=Path("future-lens-output"), help="folder to fill")
    add("--limit", type=int, default=1_500, help="sentences to read")
    add("--layers", type=int, nargs="+", default=[0, 5, 10, 15, 20, 25], help="and the last")
    add("--offsets", type=int, nargs="+", default=[1, 2, 3], help="tokens ahead")
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
