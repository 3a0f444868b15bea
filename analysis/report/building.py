"""From results to a report: one section for each kind of analysis, present or missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from actstore.errors import AnalysisError
from analysis import plots, results
from analysis.report.page import Cell, Peek, Picture, Section, Table, write

if TYPE_CHECKING:
    from actstore.store import Store

Results = Mapping[str, xr.Dataset] | Iterable[xr.Dataset] | str | os.PathLike[str]


def build(
    path: str | os.PathLike[str],
    datasets: Results,
    *,
    store: Store | None = None,
    title: str = "Activations and the maps between layers",
    command: str | None = None,
) -> Path:
    """Write the report that the results at hand allow.

    Parameters
    ----------
    path : path
        The HTML file.
    datasets : mapping or iterable of Dataset, or a folder
        Results of analyses, in any number and order, or a folder that holds them as
        `analysis.results.save` wrote them. A kind that is absent has a section that says how to
        compute it.
    store : Store, optional
        Its runs are listed.
    title, command : str
        As for `write`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    AnalysisError
        A Dataset that no analysis of this package made.
    """
    by_kind = _by_kind(datasets)
    sections = [
        make(by_kind[kind]) if by_kind.get(kind) else Section(heading, missing=hint)
        for kind, (heading, make, hint) in _SECTIONS.items()
    ]
    if store is not None:
        sections.append(_runs(store))
    provenance = {
        f"{_SECTIONS[kind][0]}: {dataset.attrs['title']}": results.read_provenance(dataset)
        for kind, found in by_kind.items()
        for dataset in found
    }
    return write(
        path,
        sections,
        title=title,
        findings=findings(datasets),
        provenance=provenance,
        command=command,
    )


def findings(datasets: Results) -> list[str]:
    """The main numbers of some results, a sentence each."""
    by_kind = _by_kind(datasets)
    sentences = []
    for dataset in by_kind.get("r2", []):
        means = dataset.r2.mean(("source", "target"))
        medians = dataset.r2.median(("source", "target"))
        parts = [
            f"{name} {float(means.sel(shortcut=name)):.3f} "
            f"(median {float(medians.sel(shortcut=name)):.3f})"
            for name in dataset.shortcut.values.tolist()
        ]
        sentences.append(f"{dataset.attrs['title']}: mean r² over all pairs, {', '.join(parts)}.")
    for dataset in by_kind.get("prediction", []):
        sentences += _prediction_findings(dataset)
    for dataset in by_kind.get("peek", []):
        means = dataset.settles.mean("sample")
        parts = [
            f"layer {float(means.sel(shortcut=name)):.1f} by {name}"
            for name in dataset.shortcut.values.tolist()
        ]
        sentences.append(
            f"{dataset.attrs['title']}: over the {dataset.sizes['sample']} samples shown, the "
            f"model's answer is in place for good from {' and '.join(parts)} on average, of "
            f"{int(dataset.layer[-1])} layers."
        )
    return sentences


def _prediction_findings(dataset: xr.Dataset) -> list[str]:
    k = int(dataset.k[0])
    at_k, name = dataset.sel(k=k), dataset.attrs["title"]
    middle = int(dataset.layer[dataset.sizes["layer"] // 2])
    parts = [
        f"{shortcut} {_percent(at_k.sel(layer=middle, shortcut=shortcut), 'precision')}"
        for shortcut in dataset.shortcut.values.tolist()
    ]
    sentences = [f"{name}: Precision@{k} at layer {middle} is {', '.join(parts)}."]
    if "precision_gain" in dataset:
        best = at_k.isel(layer=int(at_k.precision_gain.argmax("layer")))
        sentences.append(
            f"{name}: mat beats id most at layer {int(best.layer)}, by "
            f"{_percent(best, 'precision_gain')} in Precision@{k}; it is ahead at "
            f"{int((at_k.precision_gain_low > 0).sum())} and behind at "
            f"{int((at_k.precision_gain_high < 0).sum())} of {dataset.sizes['layer']} layers."
        )
    return sentences


def _r2_section(found: list[xr.Dataset]) -> Section:
    parts = [
        Picture(
            [plots.r2_heat_maps(dataset, [name]) for name in dataset.shortcut.values.tolist()],
            f"{dataset.attrs['title']}: r² of predicting the layer of each column from the layer "
            f"of each row, on {dataset.attrs.get('samples', 0):,} evaluation samples. Each "
            "coordinate's r² = 1 − SSE/SST is averaged uniformly; all of it follows from the "
            "Gram matrices of the two layers. "
            f"mat is the map {results.fitted_on(dataset)}, id takes the source state as it is. "
            "Colours are clipped to [0, 1]; the data are not.",
        )
        for dataset in found
    ]
    return Section(
        "How linear are the layers?",
        parts,
        "How much of one layer of the residual stream a linear map recovers from an earlier one "
        "(“Jump to Conclusions”, arXiv 2303.09435, §2).",
    )


def _prediction_section(found: list[xr.Dataset]) -> Section:
    parts: list[Picture | Table | Peek] = []
    for dataset in found:
        parts.append(_prediction_picture(dataset))
        parts.append(_prediction_table(dataset))
    if len(found) > 1:
        together = {dataset.attrs["title"]: dataset for dataset in found}
        k = int(found[0].k[0])
        parts.append(
            Picture(
                [plots.precision(together, ks=[k]), plots.surprisal(together)],
                f"All evaluations together over relative depth, layer / number of blocks: "
                f"Precision@{k} and surprisal as above.",
            )
        )
    return Section(
        "What do hidden layers already predict?",
        parts,
        "The state of each layer is decoded by the model's own final norm and head, through the "
        "fitted map to the last layer (mat) or as it is (id), and its best token is compared with "
        "the model's own distribution (“Jump to Conclusions”, arXiv 2303.09435, §3).",
    )


def _prediction_picture(dataset: xr.Dataset) -> Picture:
    figures = [plots.precision(dataset, ks=[k]) for k in dataset.k.values.tolist()]
    attributes = dataset.attrs
    return Picture(
        [*figures, plots.surprisal(dataset)],
        f"{attributes['title']}: Precision@k, the share of {attributes['samples']:,} samples whose "
        "decoded token is among the model's own k most probable ones, and surprisal, the mean of "
        "−ln of the probability that the model gives that token, by layer. mat decodes through the "
        f"map to the last layer, {results.fitted_on(dataset)}; id decodes the state itself. Bands "
        f"are {attributes['level']:.0%} intervals that treat samples of one "
        f"{attributes['cluster']} as dependent ({attributes['clusters']:,} clusters): "
        "Wilson's at the effective sample size for shares, Student's t for means.",
    )


def _prediction_table(dataset: xr.Dataset) -> Table:
    shortcuts, ks = dataset.shortcut.values.tolist(), dataset.k.values.tolist()
    header = ["layer", *(f"P@{k} {name} %" for k in ks for name in shortcuts)]
    header += [f"surprisal {name}" for name in shortcuts]
    rows: list[list[str | int | float | Cell]] = []
    for layer in dataset.layer.values.tolist():
        at = dataset.sel(layer=layer)
        row: list[str | int | float | Cell] = [layer]
        row += [
            _interval(at.sel(k=k, shortcut=name), "precision", 100, ".1f")
            for k in ks
            for name in shortcuts
        ]
        row += [_interval(at.sel(shortcut=name), "surprisal", 1, ".2f") for name in shortcuts]
        rows.append(row)
    return Table(
        header,
        rows,
        f"{dataset.attrs['title']}: the numbers of the curves, with the ends of their "
        f"{dataset.attrs['level']:.0%} intervals; surprisal in nats.",
        folded="The curves as numbers",
    )


def _peek_section(found: list[xr.Dataset]) -> Section:
    parts = [
        Peek(
            dataset,
            f"{dataset.attrs['title']}: the {dataset.sizes['rank']} most probable tokens decoded "
            "at each layer, with their probability in percent (and as shading). A green edge marks "
            "the layers from which on the best token is the model's answer and stays it.",
        )
        for dataset in found
    ]
    return Section("Tokens decoded at every layer", parts)


def _runs(store: Store) -> Section:
    table = store.table()
    header = list(dict.fromkeys(key for row in table for key in row))
    rows = [[_cell(row.get(key, "")) for key in header] for row in table]
    return Section(
        "Runs in the store", [Table(header, rows, "Each run is one model on one corpus.")]
    )


_SECTIONS: dict[str, tuple[str, Callable[[list[xr.Dataset]], Section], str]] = {
    "r2": (
        "How linear are the layers?",
        _r2_section,
        "No r² here: it needs maps and a Gram to evaluate them on. Compute it with "
        "analysis.r2.heat_maps(maps, run).",
    ),
    "prediction": (
        "What do hidden layers already predict?",
        _prediction_section,
        "No prediction curves here: they need the model itself, beside the store, and its last "
        "layer in the run. Compute them with analysis.prediction.curves(run, maps, model).",
    ),
    "peek": (
        "Tokens decoded at every layer",
        _peek_section,
        "No decoded tokens here: they need the model and its tokenizer. Compute them with "
        "analysis.prediction.peek(run, maps, model).",
    ),
}


def _by_kind(datasets: Results) -> dict[str, list[xr.Dataset]]:
    if isinstance(datasets, str | os.PathLike):
        found = [results.load(entry) for entry in sorted(Path(datasets).glob("*.zarr"))]
    elif isinstance(datasets, Mapping):
        found = list(datasets.values())
    else:
        found = list(datasets)
    by_kind: dict[str, list[xr.Dataset]] = {}
    for dataset in found:
        kind = dataset.attrs.get("kind")
        if kind not in _SECTIONS:
            raise AnalysisError(
                f"a result of kind {kind!r} has no section in the report; "
                f"there are {', '.join(_SECTIONS)}"
            )
        by_kind.setdefault(kind, []).append(dataset)
    return {kind: by_kind[kind] for kind in _SECTIONS if kind in by_kind}


def _cell(value: Any) -> str | int | float:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return value if isinstance(value, int | float) else str(value)


def _interval(dataset: xr.Dataset, name: str, factor: float, form: str) -> Cell:
    value, low, high = (factor * float(dataset[name + end]) for end in ("", "_low", "_high"))
    return Cell(f"{value:{form}} [{low:{form}}, {high:{form}}]", value)


def _percent(dataset: xr.Dataset, name: str) -> str:
    unit = " points" if name.endswith("gain") else "%"
    value, low, high = (100 * float(dataset[name + end]) for end in ("", "_low", "_high"))
    return f"{value:.1f}{unit} [{low:.1f}, {high:.1f}]"
