"""A tuned lens for SmolLM2 from its store: ``python -m examples.tuned_lens``.

Affine maps from some layers to the last are trained to say what the model says (Belrose et al.
2023, arXiv 2303.08112), from the least-squares start, on the sentences that ``make demo`` stores;
on sentences of other articles they are compared with the least-squares maps (mat) and with none
(id). The demo's store is used where it is there, and made where it is not. Some ten minutes on
two cores; ``--limit 2000 --layers 15`` takes two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import actstore
from analysis import report, results, tuned_lens
from examples import assets
from examples.demo import WIKIPEDIA, split


def main() -> None:
    """Train, compare, and write the report."""
    options = _options()
    options.output.mkdir(parents=True, exist_ok=True)
    model = actstore.load_model(assets.smollm2(), name="smollm2-135m")
    corpus = actstore.read_corpus(assets.wikipedia(), name="wiki", limit=WIKIPEDIA)
    run = actstore.extract(
        model, corpus, options.store, positions="random", bos="<|endoftext|>", seed=0
    )
    train, held_out = split(run)
    if options.limit:
        train = train.isel(sample=slice(options.limit))
        held_out = held_out.isel(sample=slice(options.limit // 3))
    chosen = [*options.layers, model.n_blocks]
    maps = actstore.fit(
        actstore.gram(train, layers=chosen, pairs="to_last", cache=False), pairs="to_last"
    )
    lenses = tuned_lens.train(
        train, model, layers=options.layers, epochs=options.epochs, by="article", seed=options.seed
    )
    lenses.save(options.output / "lenses.safetensors")
    found = tuned_lens.curves(held_out, lenses, maps, model, cluster="article")
    results.save(found, options.output / "tuned-lens.zarr")
    page = report.build(
        options.output / "report.html",
        [found],
        title="A tuned lens for SmolLM2-135M",
        command="python -m examples.tuned_lens",
    )
    for layer, values in lenses.provenance["tuned"]["validation_kl"].items():
        print(f"layer {layer}: KL {' → '.join(f'{value:.3f}' for value in values)} nats")
    print(*report.findings([found]), f"report  {page}", sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--store", type=Path, default=Path("demo-output/demo.zarr"), help="that of the demo")
    add("--output", type=Path, default=Path("tuned-lens-output"), help="folder to fill")
    add("--limit", type=int, help="sentences to train on, for a quick look")
    add("--layers", type=int, nargs="+", default=[5, 10, 15, 20, 25])
    add("--epochs", type=int, default=3)
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
