"""Sections of linearity scores, their errors, checkpoints, and block influence."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.plots.linearity import SCORES
from analysis.report.page import Picture, Section, Table
from analysis.report.topic import Topic, interval

PAPER = "“Your Transformer is Secretly Linear”, arXiv 2405.12250, §3"


def _findings(dataset: xr.Dataset) -> list[str]:
    title = dataset.attrs["title"]
    least = dataset.score.min().item()
    parts = [
        f"{title}: linearity score from {least:.4f} to {dataset.score.max().item():.4f}, mean "
        f"{dataset.score.mean().item():.4f}; without the residual from "
        f"{dataset.score_no_residual.min().item():.3f} to "
        f"{dataset.score_no_residual.max().item():.3f}, mean "
        f"{dataset.score_no_residual.mean().item():.3f}."
    ]
    if "held_out" in dataset:
        parts.append(
            f"{title}: held out, the mean score is {dataset.held_out.mean().item():.4f}, without "
            f"the residual {dataset.held_out_no_residual.mean().item():.3f}."
        )
    return parts


def _errors_findings(dataset: xr.Dataset) -> list[str]:
    others = dataset.sel({"class": [name for name in dataset["class"].values if name != "all"]})
    if not others.sizes["class"]:
        return []
    share = others["count"] / dataset["count"].sel({"class": "all"}).item()
    excess = (others.share_of_error.mean("step") / share).dropna("class")
    if not excess.size:
        return []
    worst = str(excess["class"].values[int(excess.argmax("class"))])
    return [
        f"{dataset.attrs['title']}: “{worst}” has {share.sel({'class': worst}).item():.1%} of the "
        "samples and, averaged over steps, "
        f"{others.share_of_error.sel({'class': worst}).mean().item():.1%} of the squared error "
        "left by the linear maps, the most for its size."
    ]


def _checkpoints_findings(dataset: xr.Dataset) -> list[str]:
    base = dataset.attrs["base"]
    return [
        f"{dataset.attrs['title']}: from {base} to {name} the mean linearity score changes by "
        f"{_plain(at, 'mean_score_change', '+.4f')}, without the residual by "
        f"{_plain(at, 'mean_score_no_residual_change', '+.3f')}."
        for name in dataset.checkpoint.values.tolist()
        if name != base
        for at in [dataset.sel(checkpoint=name)]
    ]


def _influence_findings(dataset: xr.Dataset) -> list[str]:
    values = dataset.influence
    if values.isnull().all():
        return []
    least = dataset.isel(source=int(values.argmin("source")))
    most = dataset.isel(source=int(values.argmax("source")))
    return [
        f"{dataset.attrs['title']}: the block with the least influence goes from layer "
        f"{int(least.source)} ({_plain(least, 'influence', '.4f')}), the one with the most from "
        f"layer {int(most.source)} ({_plain(most, 'influence', '.3f')})."
    ]


def _angle_findings(dataset: xr.Dataset) -> list[str]:
    sentences = []
    for span in dataset.span.values.tolist():
        at = dataset.sel(span=span)
        if span not in (1, 2, 4, 8) or at.distance.isnull().all():
            continue
        least = at.isel(source=int(at.distance.argmin("source")))
        sentences.append(
            f"{dataset.attrs['title']}: of all runs of {span} block{'s' * (span > 1)}, those from "
            f"layer {int(least.source)} on turn the stream least, "
            f"{_plain(least, 'distance', '.3f')} of a half turn."
        )
    return sentences


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        parts.append(
            Picture(
                [plots.linearity(dataset)],
                f"{dataset.attrs['title']}: 1 − min ‖X̃A − Ỹ‖² of two layers, centred and brought "
                "to norm 1, and the same for what the block adds, Y − X; rotations only: A is an "
                "orthogonal matrix with a scale. Right: ‖Y − X‖/‖X‖. " + _who(dataset),
            )
        )
        if "target" not in dataset.dims:
            names = [n for n in SCORES if n in dataset] + ["output_over_stream"]
            header = ["from layer", *(SCORES.get(n, "output / stream") for n in names)]
            rows: list[list[Any]] = [
                [int(at.source), *(interval(at, name, 1, ".4f") for name in names)]
                for layer in dataset.source.values
                for at in [dataset.sel(source=layer)]
            ]
            parts.append(Table(header, rows, "The scores as numbers.", folded="As numbers"))
    return Section(
        "Is the step from layer to layer linear?",
        parts,
        f"How much of the next layer the best linear map explains ({PAPER}).",
    )


def _errors_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        what = (
            "the root mean square of the layer's own spread"
            if dataset.attrs["normalise"] == "layer"
            else "the token's own distance from the mean"
        )
        levels = dataset["quantile"].values
        parts.append(
            Picture(
                [plots.linearity_errors(dataset)],
                f"{dataset.attrs['title']}: ‖xA + b − y‖ of single tokens over {what}, by class; "
                f"the band spans the quantiles {levels.min():g} to {levels.max():g} of all. "
                + _who(dataset),
            )
        )
        whole = int(dataset["count"].sel({"class": "all"}))
        rows: list[list[Any]] = [
            [
                name,
                int(at["count"]),
                100 * int(at["count"]) / whole,
                100 * float(at.share_of_error.mean()),
                float(np.sqrt(at.mean_square).mean()),
            ]
            for name in dataset["class"].values.tolist()
            for at in [dataset.sel({"class": name})]
        ]
        parts.append(
            Table(
                ["class", "samples", "% of samples", "% of squared error", "RMS error"],
                rows,
                f"{dataset.attrs['title']}: averages over {count(dataset.sizes['step'], 'step')}.",
            )
        )
    return Section(
        "Which tokens are not linear?",
        parts,
        f"The distribution of errors behind the linearity score ({PAPER}).",
    )


def _checkpoints_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        if "target" not in dataset.dims:
            parts.append(
                Picture(
                    [
                        plots.checkpoints(dataset, "score"),
                        plots.checkpoints(dataset, "score_no_residual"),
                    ],
                    f"{dataset.attrs['title']}: scores of each checkpoint on the same tokens, and "
                    f"their paired changes against {dataset.attrs['base']}. " + _who(dataset),
                )
            )
        names = [
            "mean_score",
            "mean_score_change",
            "mean_score_no_residual",
            "mean_score_no_residual_change",
        ]
        rows: list[list[Any]] = [
            [checkpoint, *(interval(at, name, 1, ".4f") for name in names)]
            for checkpoint in dataset.checkpoint.values.tolist()
            for at in [dataset.sel(checkpoint=checkpoint)]
        ]
        parts.append(
            Table(
                ["checkpoint", "mean score", "change", "without residual", "change"],
                rows,
                f"{dataset.attrs['title']}: means over all pairs of layers.",
            )
        )
    return Section("Linearity over checkpoints", parts, f"Base and later models ({PAPER}).")


def _influence_section(found: list[xr.Dataset]) -> Section:
    parts = [
        Picture(
            [plots.influence(dataset)],
            f"{dataset.attrs['title']}: 1 − cos of each block's input and output, averaged over "
            "samples (ShortGPT, arXiv 2403.03853). " + _who(dataset),
        )
        for dataset in found
    ]
    return Section("How much does each block turn the stream?", parts)


def _angle_section(found: list[xr.Dataset]) -> Section:
    parts = [
        Picture(
            [plots.angular_distance(dataset)],
            f"{dataset.attrs['title']}: angle between a layer and the one so many blocks on, in "
            "half turns, averaged over samples (“The Unreasonable Ineffectiveness of the Deeper "
            "Layers”, arXiv 2403.17887). " + _who(dataset),
        )
        for dataset in found
    ]
    return Section("Angular distance over several blocks", parts)


def _who(dataset: xr.Dataset) -> str:
    attributes = dataset.attrs
    groups = attributes.get("parts", attributes.get("clusters", 0))
    dropped = attributes.get("dropped", 0)
    text = count(attributes["samples"], "sample")
    if dropped:
        text += f", {dropped:,} first tokens left out"
    if groups and groups > 1:
        text += (
            f"; bands are {attributes['level']:.0%} intervals over {groups:,} groups of "
            f"{attributes['cluster']}"
        )
    return text + "."


def _plain(dataset: xr.Dataset, name: str, form: str) -> str:
    value, low, high = (float(dataset[name + end]) for end in ("", "_low", "_high"))
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


LINEARITY = Topic(
    "Is the step from layer to layer linear?",
    _section,
    _findings,
    "No linearity scores here. Compute them with analysis.linearity.scores(run).",
)
ERRORS = Topic(
    "Which tokens are not linear?",
    _errors_section,
    _errors_findings,
    "No errors of single tokens here. Compute them with analysis.linearity.errors(run).",
)
CHECKPOINTS = Topic(
    "Linearity over checkpoints",
    _checkpoints_section,
    _checkpoints_findings,
    "No checkpoints compared here: it needs two models of one shape or more on the same text. "
    "Compute it with analysis.checkpoints.compare(runs).",
)
INFLUENCE = Topic(
    "How much does each block turn the stream?",
    _influence_section,
    _influence_findings,
    "No block influence here. Compute it with analysis.influence.block_influence(run).",
)
ANGLES = Topic(
    "Angular distance over several blocks",
    _angle_section,
    _angle_findings,
    "No angular distance here. Compute it with analysis.influence.angular_distance(run).",
)
