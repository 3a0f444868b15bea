"""What a probe is to tell apart: labels of samples, their folds, and the labels of a control."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from actstore.errors import AnalysisError
from analysis.comparing import groups_of
from analysis.windows import row_parts

if TYPE_CHECKING:
    from actstore.store import Run

Labels = str | NDArray[Any] | Callable[[xr.Dataset], Any]
CONTROLS = ("auto", "clusters", "samples")


@dataclass(frozen=True)
class Task:
    """A run with a class and a fold for every sample.

    Attributes
    ----------
    run : Run
        Samples that have a label.
    left_out : int
        Samples that have none.
    classes : list of str
    codes : (n_samples,) intp
        Class of each sample.
    folds : (n_samples,) intp
        Whole clusters lie in one fold.
    clusters : (n_samples,) array or None
    """

    run: Run
    left_out: int
    classes: list[str]
    codes: NDArray[np.intp]
    folds: NDArray[np.intp]
    clusters: NDArray[Any] | None

    @property
    def n_folds(self) -> int:
        return int(self.folds.max()) + 1

    @property
    def untrained(self) -> list[str]:
        """Classes whose samples all lie in one fold: no probe that is asked for them saw them."""
        seen = np.zeros((len(self.classes), self.n_folds), bool)
        seen[self.codes, self.folds] = True
        return [name for name, row in zip(self.classes, seen, strict=True) if row.sum() < 2]


def make_task(run: Run, labels: Labels, folds: int, cluster: str | None, seed: int) -> Task:
    """Find labels, leave out the samples without one, and deal clusters out to folds.

    Raises
    ------
    AnalysisError
        No such coordinate, labels of another length, fewer than two classes, or fewer clusters
        than folds.
    """
    values = np.asarray(_values(run, labels))
    if values.shape != (run.n_samples,):
        raise AnalysisError(
            f"labels have shape {values.shape}, expected one for each of the {run.n_samples:,} "
            f"samples of {run.model}/{run.corpus}"
        )
    present = _present(values)
    kept = run if present.all() else run.isel(sample=present)
    names, codes = np.unique(values[present].astype(str), return_inverse=True)
    if len(names) < 2:
        raise AnalysisError(
            f"a probe tells two classes or more apart, but the labels of {run.model}/{run.corpus} "
            f"are {', '.join(map(repr, names.tolist())) or 'all missing'}"
        )
    if folds < 2:
        raise AnalysisError(f"folds={folds}: two or more are needed to judge on other samples")
    division = row_parts(kept, cluster, folds, seed)
    if division is None or division.max() + 1 < folds:
        raise AnalysisError(
            f"{folds} folds need as many clusters, but there are "
            f"{0 if division is None else division.max() + 1} values of {cluster!r}: give fewer "
            "folds, or another cluster"
        )
    task = Task(
        kept,
        int((~present).sum()),
        names.tolist(),
        codes.astype(np.intp),
        division,
        groups_of(kept, cluster),
    )
    if untrained := task.untrained:
        more = f" and {len(untrained) - 8} more" if len(untrained) > 8 else ""
        warnings.warn(
            f"{', '.join(map(repr, untrained[:8]))}{more}: all samples of such a class lie in "
            f"one fold (of few values of {cluster!r}), so that no probe judged on it was trained "
            "with it and it counts as wrong: leave its samples out (label None), give more "
            f"{cluster or 'sample'}s of it, or another seed",
            stacklevel=3,
        )
    return task


def shuffled(task: Task, control: str, seed: int) -> tuple[NDArray[np.intp], str]:
    """Codes of the control, and which kind it is.

    "clusters": every cluster takes the label of another, drawn without replacement; labels have
    to be the same throughout a cluster. "samples": labels are permuted over all samples.
    "auto": "clusters" where that can be, else "samples".
    """
    if control not in CONTROLS:
        raise AnalysisError(f"control={control!r} is not known: choose {', '.join(CONTROLS)}")
    rng = np.random.default_rng([seed, 1])
    clusters = np.arange(len(task.codes)) if task.clusters is None else task.clusters
    _, first, members = np.unique(clusters, return_index=True, return_inverse=True)
    of_cluster = task.codes[first]
    whole = bool((of_cluster[members] == task.codes).all())
    if control == "clusters" and not whole:
        raise AnalysisError(
            "control='clusters' needs one label for each cluster, but they vary inside some: take "
            "control='samples'"
        )
    if control == "samples" or not whole:
        return rng.permutation(task.codes), "samples"
    return rng.permutation(of_cluster)[members], "clusters"


def _values(run: Run, labels: Labels) -> Any:
    if isinstance(labels, str):
        known = [str(name) for name in run.samples.variables]
        if labels not in known:
            near = difflib.get_close_matches(labels, known, 1)
            raise AnalysisError(
                f"no sample coordinate {labels!r} to take labels from"
                + (f" (did you mean {near[0]!r}?)" if near else "")
                + f"; {run.model}/{run.corpus} has {', '.join(known)}; or give an array of labels, "
                "or a function of run.samples"
            )
        return run.samples[labels].values
    return labels(run.samples) if callable(labels) else labels


def _present(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which labels are there: not None, NaN or the empty text."""
    if values.dtype.kind == "f":
        return ~np.isnan(values)
    if values.dtype.kind in "OUT":
        return np.array([v is not None and v == v and str(v) != "" for v in values.tolist()], bool)
    return np.ones(values.shape, bool)
