"""A sparse autoencoder on one layer of SmolLM2, from the store: ``python -m examples.sae``.

All tokens of some Wikipedia sentences are stored at layer 15; a TopK autoencoder (Gao et al.
2024, "Scaling and evaluating sparse autoencoders", arXiv 2406.04093, §2) is trained on the
shuffled rows and evaluated on sentences of articles held out: about a minute and a half of one
core. A second call reuses the store.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from tqdm import tqdm

import actstore
from actstore.wording import count
from analysis.plots.style import COLOURS, legend_below, panels, style
from examples import assets

SENTENCES = 1_000
EVERY = 10  # steps between two points of the curves


class TopK(torch.nn.Module):
    """z = the k largest of W(x − b) + c, the rest 0; x̂ = z D + b, with unit rows of D."""

    def __init__(self, width: int, features: int, k: int) -> None:
        super().__init__()
        self.k = k
        rows = torch.nn.functional.normalize(torch.randn(features, width), dim=1)
        self.decoder = torch.nn.Parameter(rows)
        self.encoder = torch.nn.Parameter(rows.T.clone())
        self.centre = torch.nn.Parameter(torch.zeros(width))
        self.bias = torch.nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, width) → what is rebuilt, and the (rows, features) codes."""
        before = (x - self.centre) @ self.encoder + self.bias
        values, places = before.topk(self.k, dim=1)
        codes = torch.zeros_like(before).scatter(1, places, values.relu())
        return codes @ self.decoder + self.centre, codes


def main() -> None:
    """Extract, train, evaluate, draw."""
    options = _options()
    options.output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    started = time.perf_counter()
    records = [json.loads(line) for line in assets.wikipedia().read_text("utf-8").splitlines()]
    spread = records[:: max(len(records) // options.limit, 1)][: options.limit]  # over all articles
    corpus = actstore.read_corpus(spread, name="wiki")
    run = actstore.extract(
        actstore.load_model(assets.smollm2(), name="smollm2-135m"),
        corpus,
        options.output / "sae.zarr",
        layers=[options.layer],
        positions="all",
        bos="<|endoftext|>",
    )
    train, held_out = run.split(0.15, by="article", seed=options.seed)

    total = actstore.gram(train, pairs="within")  # mean and size of the rows, in one pass
    mean = torch.tensor(total.mean(options.layer), dtype=torch.float32)
    scale = float((total.variance(options.layer).sum() / total.n / len(mean)) ** 0.5)

    sae = TopK(len(mean), options.features, options.k)
    optimiser = torch.optim.Adam(sae.parameters(), lr=1e-3)
    data = train.to_torch(layers=options.layer, batch_size=options.batch, seed=options.seed)
    unused = torch.zeros(options.features)  # rows since a feature was last used
    curves: dict[str, list[float]] = {"step": [], "FVU": [], "L0": [], "dead": []}
    for epoch in range(options.epochs):
        data.set_epoch(epoch)
        for batch in tqdm(data, f"epoch {epoch + 1} of {options.epochs}", disable=None):
            x = (batch["activations"] - mean) / scale
            rebuilt, codes = sae(x)
            loss = (rebuilt - x).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                sae.decoder.div_(sae.decoder.norm(dim=1, keepdim=True))
                unused = torch.where((codes > 0).any(0), 0, unused + len(x))
                step = epoch * len(data) + data.batch
                if step % EVERY == 0 or step == 1:
                    curves["step"].append(step)
                    curves["FVU"].append(float(loss / x.var(0, correction=0).mean()))
                    curves["L0"].append(float((codes > 0).sum(1).float().mean()))
                    curves["dead"].append(float((unused >= train.n_samples).float().mean()))

    found = evaluate(sae, held_out, options.layer, mean, scale)
    torch.save(sae.state_dict(), options.output / "sae.pt")
    draw(curves, found, options.output / "sae.svg")
    print(
        f"{count(train.n_samples, 'row')} to train on, {held_out.n_samples:,} of other articles: "
        f"FVU {found['FVU']:.3f} there with {found['L0']:.1f} of {options.features:,} features a "
        f"row; {found['dead']:.1%} of them are never used. {options.output / 'sae.svg'}, "
        f"{time.perf_counter() - started:.0f} s"
    )


@torch.no_grad()
def evaluate(
    sae: TopK, run: actstore.Run, layer: int, mean: torch.Tensor, scale: float
) -> dict[str, float]:
    """Fraction of variance unexplained, features used by a row, and share of features unused."""
    error, active, used, total = 0.0, 0.0, torch.zeros(len(sae.bias), dtype=torch.bool), 0.0
    own = torch.tensor(
        actstore.gram(run, pairs="within", cache=False).mean(layer), dtype=torch.float32
    )
    for batch in run.to_torch(layers=layer, batch_size=1024, shuffle=False):
        x = (batch["activations"] - mean) / scale
        rebuilt, codes = sae(x)
        error += float((rebuilt - x).square().sum())
        total += float(((batch["activations"] - own) / scale).square().sum())
        active += float((codes > 0).sum())
        used |= (codes > 0).any(0)
    return {
        "FVU": error / total,
        "L0": active / run.n_samples,
        "dead": float((~used).float().mean()),
    }


def draw(curves: dict[str, list[float]], found: dict[str, float], path: Path) -> None:
    """The three curves of training, with the held-out value as a dashed line."""
    titles = {"FVU": "variance unexplained", "L0": "features a row", "dead": "dead features"}
    with style():
        figure, axes = panels(3, 3.6, 2.9)
        for axis, (name, title) in zip(axes, titles.items(), strict=True):
            axis.plot(curves["step"], curves[name], color=COLOURS[0], label="training batches")
            axis.axhline(found[name], color=COLOURS[1], linestyle="--", label="held-out articles")
            axis.set_title(title)
            axis.set_xlabel("step")
            axis.set_ylim(bottom=0)
        legend_below(figure, axes[0])
        figure.savefig(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--output", type=Path, default=Path("sae-output"), help="folder to fill")
    add("--limit", type=int, default=SENTENCES, help="sentences to read")
    add("--layer", type=int, default=15)
    add("--features", type=int, default=2048)
    add("--k", type=int, default=32)
    add("--batch", type=int, default=1024)
    add("--epochs", type=int, default=8)
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
