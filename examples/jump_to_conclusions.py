"""All of "Jump to Conclusions" on real weights: ``python -m examples.jump_to_conclusions``.

SmolLM2-135M on Wikipedia and on news, and a masked antibody model on kappa and lambda chains:
r², prediction curves, early exit, generation, sub-modules, alternation, transfer, decoded tokens
and a sheet to annotate ("Jump to Conclusions", arXiv 2303.09435, §§2–7). It should take
some 30 minutes on two quiet cores. Everything lands in one folder with one HTML file to look at;
a second call reuses what is there, and the demo's store if it is given that folder.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import xarray as xr

import actstore
from actstore.wording import count
from analysis import (
    alternation,
    annotation,
    early_exit,
    prediction,
    r2,
    report,
    results,
    submodules,
    transfer,
)
from examples import assets, germlines
from examples.demo import WIKIPEDIA, chosen_samples, split, spread

PARTS = 5_000  # sentences whose inner sites are stored, 420 kB each
SPLICED = 500  # samples run again with sub-modules replaced
SCHEDULED = 300  # and with blocks jumped over
TRANSFERRED = 1_000  # of each corpus, as in the paper
EXITS = (20, 22, 24, 26, 28)
LAMBDAS = (0.5, 0.9)
PROMPTS = (
    "The capital of France is",
    "Water is made of hydrogen and",
    "The first president of the United States was",
    "In the nineteenth century, the railways",
    "A triangle has three sides, and a square",
    "The river rises in the mountains and flows",
)


@dataclass(frozen=True)
class Kept:
    """Results in a folder, each under the key of what it was computed from."""

    folder: Path
    key: str

    def __call__(self, name: str, compute: Callable[[], xr.Dataset]) -> xr.Dataset:
        digest = hashlib.sha256(f"{actstore.__version__} {self.key} {name}".encode()).hexdigest()
        path = self.folder / f"{name.replace(' ', '-')}-{digest[:12]}.zarr"
        if not path.exists():
            print(f"— {name}", file=sys.stderr)
            started = time.perf_counter()
            results.save(compute(), path)
            print(f"— {name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
        return results.load(path)


class Decoder:
    """SmolLM2 on Wikipedia and news: its runs, its maps, and every analysis of them."""

    def __init__(self, output: Path, limit: int | None) -> None:
        self.store, self.limit = output / "demo.zarr", limit
        self.model = actstore.load_model(assets.smollm2(), name="smollm2-135m")
        self.wiki = self._extract("wiki", assets.wikipedia(), limit or WIKIPEDIA)
        self.news = self._extract("news", assets.news(), limit)
        self.train, self.held_out = split(self.wiki)
        self.news_train, self.news_held_out = self.news.split(0.4, by="article", seed=3)
        self.keep = Kept(output / "results", f"{self.wiki.key()} {self.news.key()}")

    def analyses(self) -> list[xr.Dataset]:
        model, held_out, keep = self.model, self.held_out, self.keep
        maps = self.maps
        table = keep("r2 wiki", lambda: r2.heat_maps(maps, actstore.gram(held_out, cache=False)))
        found = [
            table,
            keep("r2 news", lambda: r2.heat_maps(maps, actstore.gram(self.news, cache=False))),
            *(
                keep(
                    f"prediction {run.corpus}",
                    partial(prediction.curves, run, maps, model, cluster="article"),
                )
                for run in (held_out, self.news)
            ),
            keep("early exit", lambda: early_exit.sweep(held_out, maps, model, cluster="article")),
            keep("transfer", self._transfer),
            keep("transfer r2", self._transfer_r2),
            keep("sub-modules", lambda: self._submodules(0)),
            keep("sub-modules spared", lambda: self._submodules(1)),
            keep("alternation", lambda: self._alternation(0)),
            keep("alternation spared", lambda: self._alternation(1)),
        ]
        for cache in ("exact", "mapped"):
            for lambda_ in LAMBDAS:
                found.append(
                    keep(
                        f"generation {cache} {lambda_}",
                        partial(
                            early_exit.measure,
                            model,
                            [self._ids(prompt) for prompt in PROMPTS],
                            maps,
                            max_new_tokens=24,
                            lambda_=lambda_,
                            exits=EXITS,
                            cache=cache,
                        ),
                    )
                )
        shown = chosen_samples(held_out)
        found.append(keep("peek", lambda: prediction.peek(held_out, maps, model, shown)))
        return found

    def sheet(self, folder: Path) -> annotation.Sheet:
        """50 sentences × all layers × {mat, id}, blinded, for people to judge."""
        samples = np.flatnonzero(self.held_out.samples.position.values >= 4)[:50]
        peeked = self.keep(
            "peek for the sheet",
            lambda: prediction.peek(self.held_out, self.maps, self.model, samples.tolist()),
        )
        return annotation.export(peeked, folder)

    @cached_property
    def maps(self) -> actstore.MapSet:
        """All pairs i < j, from the Gram that the store keeps."""
        return actstore.fit(actstore.gram(self.train))

    @cached_property
    def parts(self) -> actstore.MapSet:
        """The sub-modules' maps, of some of the fitting articles."""
        articles = set(self.train.samples.article.values.tolist())
        corpus = (
            actstore.read_corpus(assets.wikipedia(), limit=WIKIPEDIA)
            if self.limit is None
            else spread(assets.wikipedia(), self.limit)
        )
        documents = [d for d in corpus if d.metadata["article"] in articles]
        run = actstore.extract(
            self.model,
            documents[:PARTS],
            self.store,
            sites=submodules.SITES,
            layers=slice(0, self.model.n_blocks),
            corpus_name="wiki-parts",
            bos="<|endoftext|>",
            seed=0,
        )
        return submodules.fit(run)

    def _extract(self, name: str, path: Path, limit: int | None) -> actstore.Run:
        return actstore.extract(
            self.model,
            actstore.read_corpus(path, limit=limit)
            if self.limit is None
            else spread(path, self.limit),
            self.store,
            positions="random",
            corpus_name=name,
            bos="<|endoftext|>",
            seed=0,
        )

    def _ids(self, prompt: str) -> list[int]:
        tokenizer = self.model.tokenizer
        return tokenizer("<|endoftext|>" + prompt, add_special_tokens=False)["input_ids"]

    @cached_property
    def _corpora(self) -> tuple[Mapping[str, actstore.MapSet], Mapping[str, actstore.Run]]:
        """Maps of as many samples of each corpus, and those of all of Wikipedia; who evaluates."""
        n = min(self.train.n_samples, self.news_train.n_samples)
        fitted = {
            "wiki": actstore.fit(self.train.isel(sample=slice(n)), pairs="to_last"),
            "news": actstore.fit(self.news_train.isel(sample=slice(n)), pairs="to_last"),
            "all of wiki": self.maps,
        }
        runs = {"wiki": self.held_out, "news": self.news_held_out}
        return fitted, {
            name: run.isel(sample=slice(min(TRANSFERRED, run.n_samples)))
            for name, run in runs.items()
        }

    def _transfer(self) -> xr.Dataset:
        return transfer.predictions(*self._corpora, self.model, cluster="article")

    def _transfer_r2(self) -> xr.Dataset:
        return transfer.r2(*self._corpora, cluster="article")

    def _submodules(self, spared: int) -> xr.Dataset:
        return submodules.curves(
            self.held_out,
            self.parts,
            self.model,
            maps=self.maps,
            layers=range(0, self.model.n_blocks + 1, 3),
            samples=SPLICED,
            spare_first=spared,
            cluster="article",
        )

    def _alternation(self, spared: int) -> xr.Dataset:
        # The schedules are chosen by r² on the fitting samples, not on those that judge them.
        table = r2.heat_maps(self.maps, actstore.gram(self.train)).r2.sel(shortcut="mat")
        blocks = self.model.n_blocks
        schedules = alternation.paper_schedules(
            table, blocks, counts=range(3, blocks, 3), periods=(2, 3, 5, 6, 10)
        )
        return alternation.curves(
            self.held_out,
            self.maps,
            self.model,
            schedules,
            r2=table,
            samples=SCHEDULED,
            spare_first=spared,
            cluster="article",
        )


def masked(output: Path, limit: int | None) -> list[xr.Dataset]:
    """The masked path: an antibody BERT on germline light chains, one mask a chain."""
    model = actstore.load_model(assets.antibody_bert(), name="antibody-bert")
    fitted, runs = {}, {}
    keys = ""
    for kind in germlines.KINDS:
        path = germlines.chains(kind)
        run = actstore.extract(
            model,
            path if limit is None else spread(path, limit),
            output / "masked.zarr",
            corpus_name=kind,
            positions="mask",
            seed=0,
        )
        rest, runs[kind] = run.split(0.3, by="gene", seed=1)
        fitted[kind] = rest
        keys += run.key()
    n = min(run.n_samples for run in fitted.values())
    maps = {kind: actstore.fit(run.isel(sample=slice(n))) for kind, run in fitted.items()}
    keep = Kept(output / "results", keys)
    kappa, of_kappa = runs["kappa"], maps["kappa"]
    blocks = model.n_blocks

    def schedules() -> xr.Dataset:
        table = r2.heat_maps(of_kappa, fitted["kappa"]).r2.sel(shortcut="mat")
        made = alternation.paper_schedules(table, blocks, counts=range(1, blocks))
        return alternation.curves(
            kappa, of_kappa, model, made, r2=table, samples=200, cluster="gene"
        )

    return [
        keep("masked r2", lambda: r2.heat_maps(of_kappa, kappa)),
        keep(
            "masked prediction", lambda: prediction.curves(kappa, of_kappa, model, cluster="gene")
        ),
        keep("masked early exit", lambda: early_exit.sweep(kappa, of_kappa, model, cluster="gene")),
        keep("masked transfer", lambda: transfer.predictions(maps, runs, model, cluster="gene")),
        keep("masked transfer r2", lambda: transfer.r2(maps, runs, cluster="gene")),
        keep("masked alternation", schedules),
        keep("masked peek", lambda: prediction.peek(kappa, of_kappa, model, range(3))),
    ]


def against_the_paper(found: list[xr.Dataset]) -> list[str]:
    """Where SmolLM2 on Wikipedia agrees with the paper's findings, and where it does not."""
    kinds = {dataset.attrs["kind"]: dataset for dataset in reversed(found)}
    curves, sweep = kinds["prediction"].sel(k=1), kinds["early_exit"]
    inner = curves.isel(layer=slice(0, -1))
    ahead = int((inner.precision_gain_low > 0).sum())
    gain = 100 * inner.precision_gain
    saved = sweep.sel(level=0.95, policy="dynamic")
    parts = kinds["submodules"].isel(k=0, layer=slice(0, -1))
    means = {name: float(parts.precision.sel(shortcut=name).mean()) for name in submodules.PARTS}
    alike = kinds["alternation"].isel(k=0)
    informed = alike.isel(schedule=np.flatnonzero(alike.family == "r² informed"))
    half = informed.real_blocks.values <= alike.attrs["n_blocks"] / 2
    wins = informed.precision_over_exit_low.values > 0
    swapped = kinds["transfer"].isel(k=0)
    cost = {
        (fitted, corpus): 100 * float(swapped.cost.sel(fitted_on=fitted, evaluated_on=corpus))
        for fitted, corpus in (("wiki", "news"), ("news", "wiki"))
    }
    return [
        f"mat above id (interval of the paired gain above 0) at {ahead} of {inner.sizes['layer']} "
        f"layers; paper (GPT-2, 48 blocks): up to layer 44, by more than 20 points. Here the gain "
        f"is {float(gain.min()):.1f} to {float(gain.max()):.1f} points, "
        f"{count(int((gain > 20).sum()), 'layer')} above 20.",
        f"dynamic exit at 95% saves {100 * float(saved.saved_share.sel(shortcut='mat')):.1f}% of "
        f"the blocks by mat, {100 * float(saved.saved_share.sel(shortcut='id')):.1f}% by id; paper "
        "(GPT-2, 24 blocks): 13.8% and 5.9%.",
        "mean Precision@1 with one kind of module linear: "
        + ", ".join(f"{name} {100 * value:.1f}%" for name, value in means.items())
        + f"; costs least: {max(means, key=lambda name: means[name])}. Paper: attention.",
        f"r²-informed schedules beat one jump at {int(wins[half].sum())} of {int(half.sum())} "
        f"counts up to half the blocks, {int(wins[~half].sum())} of {int((~half).sum())} above. "
        "Paper: in the first half only.",
        f"swapping corpora costs {cost['wiki', 'news']:.1f} points (Wikipedia's maps on news) and "
        f"{cost['news', 'wiki']:.1f} (news's on Wikipedia) of mean Precision@1, fitted on equally "
        "many samples; paper (GPT-2): 5.5 and 8.",
    ]


def main() -> None:
    """Run everything that is not there yet, write the report, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("jump-output"), help="folder to fill")
    parser.add_argument("--limit", type=int, help="documents of each corpus, for a quick look")
    parser.add_argument("--skip-masked", action="store_true", help="leave the antibody model out")
    options = parser.parse_args()
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    decoder = Decoder(output, options.limit)
    found = decoder.analyses()
    sheet = decoder.sheet(output / "annotation")
    others = [] if options.skip_masked else masked(output, options.limit)
    page = report.build(
        output / "report.html",
        [*found, *others],
        store=actstore.open(decoder.store),
        title="“Jump to Conclusions” on SmolLM2-135M and on a masked antibody model",
        command="python -m examples.jump_to_conclusions",
    )
    print(*report.findings([*found, *others]), sep="\n")
    print("against the paper:", *against_the_paper(found), sep="\n  ")
    print(f"report  {page}\nsheet   {sheet.page}")
    print(f"done in {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
