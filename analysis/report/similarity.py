"""Sections of similarity between layers, and of their spectra."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.plots.similarity import TITLES
from analysis.report.page import Cell, Picture, Section, Table
from analysis.report.topic import Topic, interval

_SOURCES = (
    "CKA: Kornblith et al., arXiv 1905.00414; SVCCA: Raghu et al., arXiv 1706.05806; PWCCA: Morcos "
    "et al., arXiv 1806.05759; Procrustes: Ding et al., arXiv 2108.01661"
)


def _similarity_findings(dataset: xr.Dataset) -> list[str]:
    parts = []
    for name in (name for name in TITLES if name in dataset):
        values = dataset[name].values
        same = dataset.a.values.tolist() == dataset.b.values.tolist()
        if same and len(values) > 1:
            neighbours = np.diagonal(values, 1)
            parts.append(
                f"{TITLES[name]} of neighbouring layers {neighbours.mean():.2f} on average, of the "
                f"first and the last {values[0, -1]:.2f}"
            )
        else:
            parts.append(f"{TITLES[name]} {values.mean():.2f} on average")
    return [f"{dataset.attrs['title']}: {'; '.join(parts)}."]


def _similarity_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        names = [name for name in TITLES if name in dataset]
        variance = dataset.attrs["variance"]
        parts.append(
            Picture(
                [plots.similarity(dataset, [name]) for name in names],
                f"{dataset.attrs['title']}: similarity of the layer of each row and that of each "
                f"column on {count(dataset.attrs['samples'], 'sample')}, from their joint Gram. "
                "Linear CKA and Procrustes weigh directions by their variance; SVCCA is the mean "
                f"canonical correlation of the components that hold {variance:.0%} of it, PWCCA "
                "the mean weighted by what the row's layer has of each. The distance runs from 0 "
                "(equal up to rotation, scale and shift) to 2.",
            )
        )
    return Section("Which layers are alike?", parts, f"{_SOURCES}.")


def _spectra_findings(dataset: xr.Dataset) -> list[str]:
    rank = dataset.effective_rank
    low, high = int(rank.argmin("layer")), int(rank.argmax("layer"))
    sentence = (
        f"{dataset.attrs['title']}: the effective rank runs from {float(rank[low]):.0f} at layer "
        f"{dataset.layer.values[low]} to {float(rank[high]):.0f} at layer "
        f"{dataset.layer.values[high]}"
    )
    if "mean_cosine" in dataset:
        cosine = dataset.mean_cosine
        ends = [f"{float(cosine.min()):.2f}", f"{float(cosine.max()):.2f}"]
        sentence += f"; the mean cosine of two samples from {ends[0]} to {ends[1]}"
    return [f"{sentence}."]


def _spectra_section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        parts.append(
            Picture(
                [plots.spectra(dataset)],
                f"{dataset.attrs['title']}, {count(dataset.attrs['samples'], 'sample')}. Left: "
                "how many directions a layer uses: exp of the entropy of its singular values "
                "(effective rank), the participation ratio (Σλ)²/Σλ², and components for a share "
                "of the variance. Middle: the mean cosine of two different samples, the share of "
                "E‖x‖² that lies in the mean, and the share of variance of the first component. "
                "Right: variance of the principal components of some layers. Bands are 95% "
                "jackknife intervals over groups of documents.",
            )
        )
        names = ["effective_rank", "participation_ratio", "mean_share", "top_share"]
        names += ["mean_cosine"] if "mean_cosine" in dataset else []
        rows = [
            [layer, *(_cell(dataset.sel(layer=layer), name) for name in names)]
            for layer in dataset.layer.values.tolist()
        ]
        parts.append(
            Table(
                ["layer", *(name.replace("_", " ") for name in names)],
                rows,
                f"{dataset.attrs['title']}: the numbers of the curves.",
                folded="The curves as numbers",
            )
        )
    return Section(
        "How many directions does a layer use?",
        parts,
        "Effective rank: Roy & Vetterli 2007; first component: arXiv 2311.05928; mean cosine: "
        "Ethayarajh 2019, arXiv 1909.00512.",
    )


def _cell(at: xr.Dataset, name: str) -> Cell:
    form = ".1f" if name in ("effective_rank", "participation_ratio") else ".3f"
    if f"{name}_low" in at:
        return interval(at, name, 1, form)
    value = float(at[name])
    return Cell(f"{value:{form}}", value)


SIMILARITY = Topic(
    "Which layers are alike?",
    _similarity_section,
    _similarity_findings,
    "No similarities here: they need a run or a Gram. Compute them with "
    "analysis.similarity.layers(run).",
)
SPECTRA = Topic(
    "How many directions does a layer use?",
    _spectra_section,
    _spectra_findings,
    "No spectra here: they need a run or a Gram. Compute them with analysis.spectra.layers(run).",
)
