"""From results to a report: one section for each kind of analysis, present or missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from actstore.errors import AnalysisError
from analysis import results
from analysis.report import (
    annotation,
    basics,
    between,
    folding,
    jumps,
    lenses,
    linearity,
    pretraining,
    probing,
    pruning,
    similarity,
    transfer,
    transport,
)
from analysis.report.page import Section, Table, write
from analysis.report.topic import Topic

if TYPE_CHECKING:
    from actstore.store import Store

_MOST_ON_TOP = 8  # sentences; of more, the first of each section

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
        `analysis.results.save` wrote them. Kinds that are absent are listed near the end, with
        how to compute them.
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
        replace(
            _TOPICS[kind].section(found),
            findings=[said for dataset in found for said in _TOPICS[kind].findings(dataset)],
        )
        for kind, found in by_kind.items()
    ]
    said = [section.findings for section in sections if section.findings]
    every = [sentence for some in said for sentence in some]
    if store is not None:
        sections.append(_runs(store))
    provenance = {
        f"{_TOPICS[kind].heading}: {dataset.attrs['title']}": results.read_provenance(dataset)
        for kind, found in by_kind.items()
        for dataset in found
    }
    return write(
        path,
        sections,
        title=title,
        findings=every if len(every) <= _MOST_ON_TOP else [some[0] for some in said],
        provenance=provenance,
        command=command,
        absent={t.heading: t.hint for kind, t in _TOPICS.items() if kind not in by_kind},
    )


def findings(datasets: Results) -> list[str]:
    """The main numbers of some results, a sentence each."""
    return [
        sentence
        for kind, found in _by_kind(datasets).items()
        for dataset in found
        for sentence in _TOPICS[kind].findings(dataset)
    ]


def _runs(store: Store) -> Section:
    table = store.table()
    header = list(dict.fromkeys(key for row in table for key in row))
    rows = [[_cell(row.get(key, "")) for key in header] for row in table]
    return Section(
        "Runs in the store", [Table(header, rows, "Each run is one model on one corpus.")]
    )


_TOPICS: dict[str, Topic] = {
    "r2": basics.R2,
    "prediction": basics.PREDICTION,
    "early_exit": jumps.EARLY_EXIT,
    "generation": jumps.GENERATION,
    "submodules": jumps.SUBMODULES,
    "alternation": jumps.ALTERNATION,
    "transfer": transfer.TRANSFER,
    "transfer_r2": transfer.TRANSFER_R2,
    "linearity": linearity.LINEARITY,
    "linearity_errors": linearity.ERRORS,
    "checkpoints": linearity.CHECKPOINTS,
    "influence": linearity.INFLUENCE,
    "angular_distance": linearity.ANGLES,
    "probing": probing.PROBING,
    "pruning": pruning.PRUNING,
    "pretraining": pretraining.PRETRAINING,
    "perplexity": pruning.PERPLEXITY,
    "annotation": annotation.ANNOTATION,
    "similarity": similarity.SIMILARITY,
    "spectra": similarity.SPECTRA,
    "tuned_lens": lenses.TUNED,
    "transport": transport.TRANSPORT,
    "future_lens": lenses.FUTURE,
    "folding": folding.FOLDING,
    "between": between.BETWEEN,
    "peek": basics.PEEK,
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
        if not isinstance(dataset, xr.Dataset):
            raise AnalysisError(f"{dataset!r} is not a result: give the Datasets of analyses")
        kind = dataset.attrs.get("kind")
        if kind not in _TOPICS:
            raise AnalysisError(
                f"a result of kind {kind!r} has no section in the report; "
                f"there are {', '.join(_TOPICS)}"
            )
        by_kind.setdefault(kind, []).append(dataset)
    return {kind: by_kind[kind] for kind in _TOPICS if kind in by_kind}


def _cell(value: Any) -> str | int | float:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return value if isinstance(value, int | float) else str(value)
