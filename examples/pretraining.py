"""Plain against regularised pretraining on simple stories: ``python -m examples.pretraining``.

Small Mistral-shaped decoders are trained from scratch on the Bible in Basic English, from several
seeds each: plain, and with a term that holds successive layers together ("Your Transformer is
Secretly Linear", arXiv 2405.12250, §5). Compared are the loss on chapters held out and the
linearity of every step between layers. On two quiet cores it should take some 25
minutes; a call that was interrupted goes on, and a second one reuses what is there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import transformers
import xarray as xr

import actstore
from actstore.wording import count
from analysis import pretraining, probing, report, results
from analysis.training import Recipe
from examples import assets

HELD_OUT = 0.1  # of the chapters
SECTIONS = {
    "Genesis": "law",
    "Joshua": "history",
    "Job": "poetry",
    "Isaiah": "prophets",
    "Matthew": "gospels",
    "Romans": "letters",
}
"""The first book of each kind; books come in order."""


def main() -> None:
    """Train what is not there yet, write the report, and print what was found."""
    options = _options()
    output: Path = options.output
    started = time.perf_counter()
    train, held_out = split(options.limit)
    tokenizer = pretraining.train_tokenizer(train, options.vocabulary)
    found = pretraining.compare(
        configuration(options, len(tokenizer)),
        train,
        held_out,
        tokenizer,
        folder=output / "models",
        seeds=range(options.seeds),
        recipe=Recipe(options.steps, options.rate, warmup=0.05, weight_decay=0.1),
        context=options.context,
        batch=options.batch,
        probe=None if options.limit else sections,
    )
    results.save(found, output / "results" / "pretraining.zarr")
    page = report.build(
        output / "report.html",
        [found],
        title="Plain and regularised decoders",
        command="python -m examples.pretraining",
    )
    print(table(found), *report.findings([found]), sep="\n")
    print("against the paper:", *against_the_paper(found), sep="\n  ")
    print(f"report  {page}")
    print(f"done in {time.perf_counter() - started:.0f} s", file=sys.stderr)


def split(limit: int | None) -> tuple[list[actstore.Document], list[actstore.Document]]:
    """Chapters to train on and chapters held out, drawn once for all."""
    documents = list(actstore.read_corpus(assets.stories()))
    order = np.random.default_rng(0).permutation(len(documents))[:limit]
    left = int(HELD_OUT * len(order))
    return [documents[n] for n in order[left:]], [documents[n] for n in order[:left]]


def sections(run: actstore.Run) -> xr.DataArray:
    """Accuracy, by layer, of telling from one token's state what kind of book it is from."""
    kinds, kind = {}, ""
    for document in actstore.read_corpus(assets.stories()):
        book = str(document.metadata["book"])
        kind = SECTIONS.get(book, kind)
        kinds[book] = kind

    def labels(samples: xr.Dataset) -> np.ndarray:
        return np.array([kinds[book] for book in samples.book.values.tolist()])

    found = probing.accuracy(run, labels, folds=3, ridges=(1e-3, 1e-2), task="kind of book")
    return found.accuracy


def configuration(options: argparse.Namespace, vocabulary: int) -> Any:
    """A Mistral-shaped decoder of the size asked for; the head is the embedding."""
    heads = max(1, options.width // 32)
    return transformers.MistralConfig(
        vocab_size=vocabulary,
        hidden_size=options.width,
        intermediate_size=8 * (options.width // 3),
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        max_position_embeddings=max(512, options.context),
        sliding_window=None,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def table(found: xr.Dataset) -> str:
    """Loss and linearity of each arm, means over seeds, for the terminal."""
    attributes = found.attrs
    lines = [
        f"{found.attrs['title']}, {attributes['parameters']:,} parameters, "
        f"{count(attributes['tokens_trained'], 'token')}, {count(found.sizes['seed'], 'seed')}",
        "arm      validation loss          linearity by step between layers",
    ]
    for arm in found.arm.values.tolist():
        at = found.sel(arm=arm)
        loss = (float(at["mean_validation_loss" + end]) for end in ("", "_low", "_high"))
        scores = " ".join(f"{value:.3f}" for value in at.mean_linearity.values)
        lines.append(f"{arm:<9}" + "{:.3f} [{:.3f}, {:.3f}]   ".format(*loss) + scores)
    return "\n".join(lines)


def against_the_paper(found: xr.Dataset) -> list[str]:
    """Where these models agree with §5 of the paper, and where they do not."""
    lines = []
    for arm in found.arm.values.tolist()[1:]:
        at = found.sel(arm=arm)
        if "accuracy" in found:
            better = int((at.accuracy_gain_low > 0).sum())
            worse = int((at.accuracy_gain_high < 0).sum())
            lines.append(
                f"{arm}: the probe is better than on the plain model at {better} of "
                f"{count(at.sizes['layer'], 'layer')} and worse at {worse}; paper: better on "
                "SuperGLUE (46.1 against 43.3 with the cosine, 650M parameters)."
            )
        lower = int((at.linearity_gain_high < 0).sum())
        higher = int((at.linearity_gain_low > 0).sum())
        loss = (float(at["validation_loss_gain" + end]) for end in ("", "_low", "_high"))
        lines.append(
            f"{arm}: the linearity score is lower than the plain model's at {lower} of "
            f"{count(at.sizes['source'], 'step')} between layers and higher at {higher} (95% "
            "intervals over "
            "seeds); paper: lower. Validation loss {:+.3f} [{:+.3f}, {:+.3f}] nats per token; "
            "paper: better on its benchmarks, of models 50 times as large.".format(*loss)
        )
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("pretraining-output"), help="to fill")
    parser.add_argument("--limit", type=int, help="chapters in all, for a quick look")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="windows a step")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    return parser.parse_args()


if __name__ == "__main__":
    main()
