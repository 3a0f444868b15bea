"""Pruning SmolLM2 by linearity, on Wikipedia: ``python -m examples.pruning``.

Blocks of SmolLM2-135M are taken out, the most linear first, in four ways: removed, replaced by
fitted linear maps, these distilled, and removed with all parameters distilled ("Your Transformer
is Secretly Linear", arXiv 2405.12250, §4). Perplexity is of articles that took no part in any of
it. On two quiet cores it should take some 20 minutes; a second call reuses what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr

import actstore
from actstore.wording import count
from analysis import pruning, report, results
from analysis.pruning import distilling
from examples import assets

BOS = "<|endoftext|>"
COUNTS = (0, 1, 2, 4, 6, 8)
HELD_OUT = 24  # articles
JUDGED = 320  # tokens of each of them
CONTEXT = 512
FITTED = 256  # tokens of each other article
MAPS = replace(distilling.MAPS, steps=40)
WHOLE = replace(distilling.WHOLE, steps=20)


def main() -> None:
    """Run what is not there yet, write the report, and print what was found."""
    options = _options()
    output: Path = options.output
    started = time.perf_counter()
    model = actstore.load_model(assets.smollm2(), name="smollm2-135m")
    train, held_out = articles(model, options.limit)
    found = pruning.curves(
        model,
        [cut(model, article, FITTED) for article in train],
        [cut(model, article, JUDGED) for article in held_out],
        options.counts,
        variants=options.variants,
        by=options.by,
        rescored=options.rescored,
        context=CONTEXT,
        stride=CONTEXT // 2,
        bos=BOS,
        distil_text=train,
        maps_recipe=MAPS if options.limit is None else replace(MAPS, steps=5),
        whole_recipe=WHOLE if options.limit is None else replace(WHOLE, steps=3),
        folder=output / "pruned",
    )
    results.save(found, output / "results" / "pruning.zarr")
    page = report.build(
        output / "report.html",
        [found],
        title="SmolLM2-135M with fewer blocks",
        command="python -m examples.pruning",
    )
    print(table(found), *report.findings([found]), sep="\n")
    print("against the paper:", *against_the_paper(found), sep="\n  ")
    print(f"report  {page}")
    print(f"done in {time.perf_counter() - started:.0f} s", file=sys.stderr)


def articles(
    model: actstore.LanguageModel, limit: int | None
) -> tuple[list[actstore.Document], list[actstore.Document]]:
    """Wikipedia's articles, each its sentences joined: to fit and distil on, and held out."""
    texts: dict[str, list[str]] = {}
    for line in assets.wikipedia().read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        texts.setdefault(record["article"], []).append(record["text"])
    documents = [
        actstore.Document(" ".join(sentences), id=title) for title, sentences in texts.items()
    ]
    order = np.random.default_rng(0).permutation(len(documents))
    shuffled = [documents[number] for number in order]
    held_out, train = shuffled[:HELD_OUT], shuffled[HELD_OUT:]
    return (train, held_out) if limit is None else (train[:limit], held_out[: max(2, limit // 4)])


def cut(
    model: actstore.LanguageModel, document: actstore.Document, tokens: int
) -> actstore.Document:
    """The first tokens of a document, behind BOS."""
    tokenizer = model.tokenizer
    ids = tokenizer(BOS + (document.text or ""), add_special_tokens=False)["input_ids"]
    return actstore.Document(input_ids=ids[:tokens], id=document.id)


def table(found: xr.Dataset) -> str:
    """Perplexities for the terminal."""
    counts = found["count"].values.tolist()
    lines = [
        f"perplexity of {count(found.attrs['tokens'], 'token')} of "
        f"{count(found.attrs['documents'], 'article')}, "
        f"context {found.attrs['context']}, stride {found.attrs['stride']}; blocks taken out: "
        f"{', '.join(map(str, found.order.values.tolist()))}",
        "variant            " + "".join(f"{taken:>9}" for taken in counts),
    ]
    for variant in found.variant.values.tolist():
        row = found.perplexity.sel(variant=variant).values
        lines.append(f"{variant:<19}" + "".join(f"{value:9.2f}" for value in row))
    return "\n".join(lines)


def against_the_paper(found: xr.Dataset) -> list[str]:
    """Where SmolLM2 agrees with §4 of the paper, and where it does not."""
    counts = [n for n in found["count"].values.tolist() if n]
    named = set(found.variant.values.tolist())
    lines = []
    for first, second, claim in (
        ("remove", "replace", "linear maps lose less than removal"),
        ("replace", "replace_distilled", "distilling the maps helps"),
        ("remove", "remove_distilled", "distillation heals what removal costs"),
    ):
        if {first, second} <= named:
            ratios = [pruning.compare_variants(found, first, second, n) for n in counts]
            better = [n for n, one in zip(counts, ratios, strict=True) if one.high < 1]
            worse = [n for n, one in zip(counts, ratios, strict=True) if one.low > 1]
            factors = ", ".join(
                f"{n}: × {float(r.value):.2f}" for n, r in zip(counts, ratios, strict=True)
            )
            lines.append(
                f"{second} against {first} ({factors}): lower perplexity with {better or 'none'} "
                f"and higher with {worse or 'none'} of {counts} blocks, by 95% intervals paired "
                f"by article; paper: {claim}"
            )
    for variant in found.variant.values.tolist():
        ratios = found.ratio.sel(variant=variant)
        kept = [n for n in counts if float(ratios.sel(count=n)) < 1.1]
        lines.append(
            f"{variant}: perplexity rises less than 10% with up to {max(kept, default=0)} of "
            f"{count(found.attrs['blocks'], 'block')} taken out"
        )
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("pruning-output"), help="to fill")
    parser.add_argument("--limit", type=int, help="articles to fit on, for a quick look")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="blocks taken out")
    parser.add_argument("--variants", nargs="+", default=pruning.VARIANTS, help="which ways")
    parser.add_argument("--by", default="linearity", choices=pruning.CRITERIA)
    parser.add_argument("--rescored", action="store_true", help="rank anew after each removal")
    return parser.parse_args()


if __name__ == "__main__":
    main()
