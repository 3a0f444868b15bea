"""Sections of early exit, generation, sub-modules and alternation."""

from __future__ import annotations

from typing import Any

import xarray as xr

from actstore.wording import count
from analysis import plots, results
from analysis.report.page import Picture, Section, Table
from analysis.report.topic import Topic, interval, percent

_PAPER = "“Jump to Conclusions”, arXiv 2303.09435"


def _bands(dataset: xr.Dataset) -> str:
    attributes = dataset.attrs
    return (
        f"{attributes['level']:.0%} intervals that treat samples of one {attributes['cluster']} "
        f"as dependent ({count(attributes['clusters'], 'cluster')})"
    )


def _span(at: xr.Dataset, name: str, form: str = ".2f") -> str:
    value, low, high = (float(at[name + end]) for end in ("", "_low", "_high"))
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def _early_exit_findings(dataset: xr.Dataset) -> list[str]:
    level = 0.95 if 0.95 in dataset.level.values else float(dataset.level[-1])
    blocks = dataset.attrs["n_blocks"]
    sentences = []
    for policy in dataset.policy.values.tolist():
        at = dataset.sel(policy=policy, level=level)
        parts = [
            f"{name} {_span(at.sel(shortcut=name), 'saved')} "
            f"({100 * float(at.saved_share.sel(shortcut=name)):.1f}%)"
            for name in dataset.shortcut.values.tolist()
        ]
        gain = f"; mat saves {_span(at, 'saved_gain')} more" if "saved_gain" in at else ""
        sentences.append(
            f"{dataset.attrs['title']}: blocks of {blocks} saved by {policy} exit at {level:.0%} "
            f"Precision@1, {', '.join(parts)}{gain}."
        )
    return sentences


def _early_exit_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        attributes = dataset.attrs
        parts.append(
            Picture(
                [plots.early_exit(dataset)],
                f"{attributes['title']}: Precision@1 over blocks run, on "
                f"{count(attributes['samples'], 'sample')}. Fixed: all leave at one layer. "
                "Dynamic: each leaves at the first layer whose two best probabilities are "
                "further apart than 0.9 λ + 0.1 exp(−4 t / N), one point for each λ; t is the "
                f"token's place and N = {attributes['mean_length']:.1f} the mean length. mat "
                f"decodes through the map to the last layer, {results.fitted_on(dataset)}. Bands "
                f"are {_bands(dataset)}.",
            )
        )
        shortcuts = dataset.shortcut.values.tolist()
        header = ["exit", "Precision@1"]
        header += [f"saved {name}" for name in shortcuts] + [f"% {name}" for name in shortcuts]
        rows = []
        for policy in dataset.policy.values.tolist():
            for level in dataset.level.values.tolist():
                at = dataset.sel(policy=policy, level=level)
                rows.append(
                    [policy, level]
                    + [interval(at.sel(shortcut=s), "saved", 1, ".2f") for s in shortcuts]
                    + [interval(at.sel(shortcut=s), "saved_share", 100, ".1f") for s in shortcuts]
                )
        parts.append(
            Table(
                header,
                rows,
                f"{attributes['title']}: blocks of {attributes['n_blocks']} that need not run to "
                "hold a Precision@1, read off the curves by straight lines between their points, "
                f"with percentile intervals of {attributes['resamples']:,} bootstrap resamples of "
                f"whole {attributes['cluster']} clusters.",
            )
        )
    return Section(
        "How many blocks does a prediction need?",
        parts,
        f"Early exit at a fixed layer, and token by token once the prediction is clear ({_PAPER}, "
        "§4). Every stored state has its whole history run through all blocks.",
    )


def _generation_findings(dataset: xr.Dataset) -> list[str]:
    early, full = (dataset.sel(way=w) for w in dataset.way.values.tolist()[:2])
    return [
        f"{dataset.attrs['title']}: generating with early exits runs {_span(dataset, 'calls')} of "
        f"{count(dataset.attrs['n_blocks'], 'block')} a token in a row "
        f"({_span(dataset, 'blocks')} counting each position), in "
        f"{_span(early * 1000, 'seconds', '.1f')} ms a token against "
        f"{_span(full * 1000, 'seconds', '.1f')} ms with all blocks; "
        f"{percent(dataset, 'agreement')} of the tokens are the full model's own."
    ]


def _generation_section(found: list[xr.Dataset]) -> Section:
    parts = []
    for dataset in found:
        options = results.read_provenance(dataset)["parameters"]
        rows: list[list[Any]] = [
            [f"{way}: ms per token", interval(dataset.sel(way=way), "seconds", 1000, ".1f")]
            for way in dataset.way.values.tolist()
        ]
        rows += [
            ["layer left at", interval(dataset, "layer", 1, ".2f")],
            ["block calls per token", interval(dataset, "calls", 1, ".2f")],
            ["block runs per token, each position", interval(dataset, "blocks", 1, ".2f")],
            ["products with the vocabulary per token", interval(dataset, "reads", 1, ".2f")],
            ["% of tokens that are the full model's", interval(dataset, "agreement", 100, ".1f")],
        ]
        shown = {k: v for k, v in options.items() if k not in ("prompts", "max_new_tokens")}
        parts.append(
            Table(
                ["measure", "mean over prompts"],
                rows,
                f"{dataset.attrs['title']}: {count(dataset.attrs['max_new_tokens'], 'token')} "
                f"after each of {count(dataset.attrs['prompts'], 'prompt')}, of "
                f"{count(dataset.attrs['n_blocks'], 'block')}; {dataset.attrs['level']:.0%} "
                f"Student t intervals over prompts; {shown}. Wall times are those of the machine "
                "that made this report.",
            )
        )
    return Section(
        "Generating with early exits",
        parts,
        "Greedy generation that stops running blocks. With cache='exact' skipped blocks are run "
        "for earlier tokens once a later token needs them, so that every key and value is the "
        "full model's; with cache='mapped' keys and values come from mapped states.",
    )


def _submodules_findings(dataset: xr.Dataset) -> list[str]:
    at_k = dataset.isel(k=0)
    k, layers = int(at_k.k), dataset.layer.values.tolist()
    names = dataset.shortcut.values.tolist()
    inner = at_k.isel(layer=slice(0, -1)) if len(layers) > 1 else at_k
    means = ", ".join(
        f"{n} {100 * float(inner.precision.sel(shortcut=n).mean()):.1f}%" for n in names
    )
    sentences = [
        f"{dataset.attrs['title']}: mean Precision@{k} over layers {int(inner.layer[0])}…"
        f"{int(inner.layer[-1])} with one kind of module linear from there on, {means}."
    ]
    if "precision_over_mat" in dataset:
        kinds = [name for name in names if name not in ("mat", "id")]
        worse = (inner.precision_over_mat_low.sel(shortcut=kinds) <= 0).any("shortcut").values
        ahead = [int(layer) for layer, bad in zip(inner.layer, worse, strict=True) if not bad]
        said = f"at layers {', '.join(map(str, ahead))}" if ahead else "at no layer"
        sentences.append(
            f"{dataset.attrs['title']}: all of {', '.join(kinds)} beat mat (interval above 0) "
            f"{said}, of those tried."
        )
    return sentences


def _submodules_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        parts.append(
            Picture(
                [plots.precision(dataset, ks=[int(dataset.k[0])]), plots.surprisal(dataset)],
                f"{dataset.attrs['title']}: Precision and surprisal, on "
                f"{count(dataset.attrs['samples'], 'sample')}, when from the layer on the "
                "horizontal axis all later blocks run with a fitted map in place of attention, "
                "feed-forward or norms, at all positions; mat and id jump to the last layer. "
                f"Bands are {_bands(dataset)}.",
            )
        )
        names, ks = dataset.shortcut.values.tolist(), dataset.k.values.tolist()
        rows = []
        for layer in dataset.layer.values.tolist():
            at = dataset.sel(layer=layer)
            row = [
                interval(at.sel(shortcut=n, k=k), "precision", 100, ".1f")
                for k in ks
                for n in names
            ]
            row += [interval(at.sel(shortcut=n), "surprisal", 1, ".2f") for n in names]
            rows.append([layer, *row])
        header = ["layer", *(f"P@{k} {n} %" for k in ks for n in names)]
        header += [f"surprisal {n}" for n in names]
        caption = f"{dataset.attrs['title']}: the numbers of the curves, surprisal in nats."
        parts.append(Table(header, rows, caption, folded="The curves as numbers"))
    return Section(
        "Which part of a block is most linear?",
        parts,
        f"Linear maps in place of one kind of sub-module ({_PAPER}, §5).",
    )


def _alternation_findings(dataset: xr.Dataset) -> list[str]:
    at_k = dataset.isel(k=0)
    known = at_k.precision_over_exit_low
    if not bool(known.notnull().any()):
        return []
    better = int((known > 0).sum())
    best = at_k.isel(schedule=int(at_k.precision_over_exit.fillna(-9).argmax("schedule")))
    compared = at_k.family.values != "one jump to the end"
    total = int((known.notnull().values & compared).sum())
    return [
        f"{dataset.attrs['title']}: {better} of {total} schedules beat one jump to the end with as "
        f"many blocks run (interval above 0); most so {best.family.item()} ({best.steps.item()}), "
        f"by {percent(best, 'precision_over_exit')} in Precision@{int(at_k.k)}."
    ]


def _alternation_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        k = int(dataset.k[0])
        parts.append(
            Picture(
                [plots.alternation(dataset, k=k)],
                f"{dataset.attrs['title']}: Precision@{k} of schedules that run some blocks and "
                f"jump over the others at all positions, on "
                f"{count(dataset.attrs['samples'], 'sample')}. "
                f"Bars are {_bands(dataset)}.",
            )
        )
        rows = []
        for number in range(dataset.sizes["schedule"]):
            at = dataset.isel(schedule=number)
            product = [float(at["product"])] if "product" in dataset else []
            precise = [interval(at.isel(k=n), "precision", 100, ".1f") for n in range(len(at.k))]
            row = [at.family.item(), int(at.real_blocks), at.steps.item(), *product, *precise]
            row += [interval(at, "surprisal", 1, ".2f")]
            row += [interval(at.isel(k=0), "precision_over_exit", 100, ".1f")]
            rows.append(row)
        header = ["kind", "blocks run", "schedule"]
        header += ["product of r²"] if "product" in dataset else []
        header += [*(f"P@{k} %" for k in dataset.k.values.tolist()), "surprisal"]
        header += ["points over one jump"]
        caption = (
            f"{dataset.attrs['title']}: every schedule; the last column is the paired difference "
            "in the first Precision to one jump to the end with as many blocks run."
        )
        parts.append(Table(header, rows, caption, folded="All schedules"))
    return Section(
        "Running some blocks and jumping over others",
        parts,
        f"Weighted round robins in both orders, the schedules whose jumps have the greatest "
        f"product of r², random ones, and one jump to the end ({_PAPER}, §6).",
    )


EARLY_EXIT = Topic(
    "How many blocks does a prediction need?",
    _early_exit_section,
    _early_exit_findings,
    "No early exit here: it needs the model beside the store, and maps to the last layer. Compute "
    "it with analysis.early_exit.sweep(run, maps, model).",
)
GENERATION = Topic(
    "Generating with early exits",
    _generation_section,
    _generation_findings,
    "No generation here: it needs a causal model, prompts and maps. Measure it with "
    "analysis.early_exit.measure(model, prompts, maps).",
)
SUBMODULES = Topic(
    "Which part of a block is most linear?",
    _submodules_section,
    _submodules_findings,
    "No sub-modules here: they need a run with the sites of analysis.submodules.SITES and a model "
    "of sequential pre-norm blocks. Fit with analysis.submodules.fit(run), then "
    "analysis.submodules.curves(run, parts, model).",
)
ALTERNATION = Topic(
    "Running some blocks and jumping over others",
    _alternation_section,
    _alternation_findings,
    "No alternation here: it needs the model and maps between all pairs of layers. Compute it with "
    "analysis.alternation.curves(run, maps, model, schedules).",
)
