""" "Your Transformer is Secretly Linear" from the store: ``python -m examples.secretly_linear``.

SmolLM2-135M on Wikipedia: linearity scores with and without the residual, in-sample and held out,
with and without the attention sink; errors of single tokens by class; block influence and angular
distance; probes of token classes, and of the 15 genres of the Brown corpus. A masked BERT on
reactions and its two fine-tuned descendants: linearity over checkpoints (arXiv 2405.12250, §§3–4).
It should take some ten minutes on two cores where the demo's store is in the folder already, and
reuses what is there. Pruning and pretraining are in ``examples.pruning`` and
``examples.pretraining``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import actstore
from actstore.wording import count
from analysis import (
    checkpoints,
    influence,
    linearity,
    probing,
    report,
    tokens,
)
from examples import assets
from examples.demo import WIKIPEDIA, split, spread
from examples.jump_to_conclusions import Kept

WHOLE = 300  # sentences of which every token is stored, BOS too
PER_TEXT = 8  # Brown sentences of each of the 500 texts
PER_REACTION = 12
BOS = "<|endoftext|>"
CHECKPOINTS = {
    "pretrained": assets.reaction_bert,
    "fine-tuned": assets.reaction_bert_ft,
    "fine-tuned on 10k": assets.reaction_bert_10k,
}


class Study:
    """The runs, and every analysis of them."""

    def __init__(self, output: Path, limit: int | None) -> None:
        self.store, self.limit = output / "demo.zarr", limit
        self.folder = output / "results"

    def analyses(self) -> Iterator[xr.Dataset]:
        """One result after the other, those on disk without computing."""
        train, held_out = self.wiki
        # Runs are known by their keys, so that a result of other rows is never taken for theirs.
        wiki = self._kept(train, held_out)
        yield wiki(
            "linearity", lambda: linearity.scores(train, held_out=held_out, cluster="article")
        )
        yield wiki("errors", lambda: linearity.errors(train, cluster="article"))
        yield wiki("influence", lambda: influence.block_influence(train, cluster="article"))
        yield wiki("angles", lambda: influence.angular_distance(train, cluster="article"))
        yield wiki(
            "probe of token classes",
            lambda: probing.accuracy(
                train, token_class, cluster="article", layers=self._some(train), task="token class"
            ),
        )
        whole = self.whole
        every = self._kept(whole)
        for first_token in ("keep", "drop"):
            yield every(
                f"linearity of all tokens {first_token}",
                partial(
                    linearity.scores,
                    whole,
                    first_token=first_token,
                    cluster="article",
                    orthogonal=False,
                ),
            )
        yield every("errors of all tokens", lambda: linearity.errors(whole, cluster="article"))
        triple = self.reactions
        yield self._kept(*triple.values())(
            "checkpoints", lambda: checkpoints.compare(triple, cluster="core")
        )
        brown = self.brown
        yield self._kept(brown)(
            "probe of genres",
            lambda: probing.accuracy(brown, "genre", cluster="article", layers=self._some(brown)),
        )

    @cached_property
    def decoder(self) -> actstore.LanguageModel:
        """SmolLM2-135M."""
        return actstore.load_model(assets.smollm2(), name="smollm2-135m")

    @cached_property
    def wiki(self) -> tuple[actstore.Run, actstore.Run]:
        """One random token of each sentence, by article: to fit on, and to judge."""
        return split(self._extract("wiki", self._wikipedia(WIKIPEDIA), positions="random"))

    @cached_property
    def whole(self) -> actstore.Run:
        """All tokens of some sentences, the BOS in front included: it is the attention sink."""
        documents = spread(assets.wikipedia(), min(WHOLE, self.limit or WHOLE))
        return self._extract("wiki-all", documents, positions="all", include_special=True)

    @cached_property
    def brown(self) -> actstore.Run:
        """The last token of sentences from all 500 texts."""
        documents = [
            actstore.Document(record.pop("text"), record.pop("id"), record)
            for record in self._brown_records()
        ]
        return self._extract("brown", documents, positions="last")

    @cached_property
    def reactions(self) -> dict[str, actstore.Run]:
        """The same tokens of the same reactions, by each checkpoint."""
        return {
            name: actstore.extract(
                actstore.load_model(folder(), name=f"reaction-bert-{number}"),
                assets.reactions()
                if self.limit is None
                else spread(assets.reactions(), self.limit),
                self.store.with_name("reactions.zarr"),
                corpus_name="reactions",
                positions="random",
                per_document=PER_REACTION,
                seed=0,
            )
            for number, (name, folder) in enumerate(CHECKPOINTS.items())
        }

    def _wikipedia(self, most: int) -> object:
        if self.limit is None:
            return actstore.read_corpus(assets.wikipedia(), limit=most)
        return spread(assets.wikipedia(), self.limit)

    def _brown_records(self) -> list[dict[str, str]]:
        lines = assets.brown().read_text(encoding="utf-8").splitlines()
        texts = itertools.groupby(map(json.loads, lines), key=lambda record: record["article"])
        chosen = []
        for _, records in texts:
            found = list(records)
            chosen += found[:: max(1, len(found) // PER_TEXT)][:PER_TEXT]
        return chosen if self.limit is None else chosen[:: max(1, len(chosen) // self.limit)]

    def _extract(self, name: str, corpus: object, **sampling: Any) -> actstore.Run:
        return actstore.extract(
            self.decoder, corpus, self.store, corpus_name=name, bos=BOS, seed=0, **sampling
        )

    def _kept(self, *runs: actstore.Run) -> Kept:
        return Kept(self.folder, " ".join(run.key() for run in runs))

    @staticmethod
    def _some(run: actstore.Run) -> list[int]:
        """Every third layer, the last among them."""
        return run.sites["resid"][::3]


def token_class(samples: xr.Dataset) -> np.ndarray:
    """Punctuation, number, start of a word or continuation: the label of a probe."""
    return tokens.token_kinds(np.asarray(samples["token"].values, object))


def against_the_paper(found: dict[str, xr.Dataset]) -> list[str]:
    """Where SmolLM2 and the reaction BERT agree with the paper's findings, and where not."""
    wiki = found["linearity"]
    # The embedding's step and the last block's are of another kind in every model.
    inner, keep, drop = (
        found[name].isel(source=slice(1, -1)) for name in ("linearity", "all keep", "all drop")
    )
    adds = inner.output_over_stream
    lost = inner.score - inner.held_out
    triple = found["checkpoints"]
    errors = found["all errors"]
    lines = [
        f"scores near 1 at every step; paper: OPT-125M .997–.9998. Here, at random positions "
        f"without the sink, {_range(inner.score)} between layers 1 and "
        f"{int(inner.target[-1])} (first step {float(wiki.score[0]):.3f}, last "
        f"{float(wiki.score[-1]):.3f}); {int((inner.score > 0.99).sum())} of "
        f"{inner.sizes['source']} above .99, {int((inner.score > 0.95).sum())} above .95.",
        f"without the residual much lower; paper: .43–.998. Here {_range(inner.score_no_residual)}"
        f", lower than with it at {int((inner.score_no_residual < inner.score).sum())} of "
        f"{count(inner.sizes['source'], 'step')}.",
        f"the block adds little to the stream; here ‖output‖/‖stream‖ is {_range(adds)}, median "
        f"{float(adds.median()):.2f}.",
        f"held out (other articles) the scores are lower by {_range(lost)}; without the residual "
        f"they are {_range(inner.held_out_no_residual)}. The paper's are in-sample.",
        f"with all tokens and the BOS, the scores are {_range(keep.score)}, "
        f"{int((keep.score > 0.99).sum())} of {keep.sizes['source']} above .99; without the BOS "
        f"{_range(drop.score)}, {int((drop.score > 0.99).sum())} above .99. Where the BOS's norm "
        "is massive, it alone brings the score near 1.",
    ]
    if "first token" in errors["class"].values:
        first = errors.sel({"class": "first token"})
        share = float(first["count"]) / errors.attrs["samples"]
        lines.append(
            f"the BOS, {share:.1%} of those tokens, has {float(first.share_of_error.median()):.2%} "
            "of the squared error at the median step."
        )
    for name in triple.checkpoint.values[1:]:
        at = triple.sel(checkpoint=name)
        lines.append(
            "fine-tuning makes layers more linear; paper: yes, for decoders. Reaction BERT, "
            f"{name}: mean score {_interval(at, 'mean_score_change', '+.4f')}, without the "
            f"residual {_interval(at, 'mean_score_no_residual_change', '+.4f')}; up at "
            f"{int((at.score_change_low > 0).sum())}, down at "
            f"{int((at.score_change_high < 0).sum())} of {count(triple.sizes['source'], 'step')}."
        )
    for name in ("genres", "token classes"):
        probe = found[name]
        best, first, last = (
            probe.isel(layer=k) for k in (int(probe.accuracy.argmax("layer")), 0, -1)
        )
        lines.append(
            f"probe of {name}: best at layer {int(best.layer)}, "
            f"{_interval(best, 'accuracy', '.3f')}, first layer "
            f"{_interval(first, 'accuracy', '.3f')}, last {_interval(last, 'accuracy', '.3f')}; "
            f"commonest class {_interval(probe, 'majority', '.3f')}, shuffled labels "
            f"{_interval(best, 'control_accuracy', '.3f')}."
        )
    return lines


NAMES = (
    "linearity",
    "errors",
    "influence",
    "angles",
    "token classes",
    "all keep",
    "all drop",
    "all errors",
    "checkpoints",
    "genres",
)


def _range(values: xr.DataArray) -> str:
    return f"{float(values.min()):.3f}–{float(values.max()):.3f}"


def _interval(dataset: xr.Dataset, name: str, form: str) -> str:
    value, low, high = (float(dataset[name + end]) for end in ("", "_low", "_high"))
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def main() -> None:
    """Run everything that is not there yet, write the report, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("linear-output"), help="folder to fill")
    parser.add_argument("--limit", type=int, help="documents of each corpus, for a quick look")
    options = parser.parse_args()
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    study = Study(output, options.limit)
    found = dict(zip(NAMES, study.analyses(), strict=True))
    page = report.build(
        output / "secretly-linear.html",
        found,
        store=actstore.open(study.store),
        title="“Your Transformer is Secretly Linear” on SmolLM2-135M and a reaction BERT",
        command="python -m examples.secretly_linear",
    )
    print(*report.findings(found), sep="\n")
    print("against the paper:", *against_the_paper(found), sep="\n  ")
    print(f"report  {page}")
    print(f"done in {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
