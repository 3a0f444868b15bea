"""Accuracy of linear probes at every layer, cross-validated over whole documents."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError, SiteError
from analysis import jackknife, results, stats
from analysis.comparing import add
from analysis.probing import logistic
from analysis.probing.labels import Labels, Task, make_task, shuffled
from analysis.probing.solver import cross_validated, fold_moments, predict
from analysis.windows import row_parts

if TYPE_CHECKING:
    from actstore.store import Run

LEVEL = 0.95
METHODS = ("ridge", "least_squares", "logistic")
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
GROUPS = 50


def accuracy(
    run: Run,
    labels: Labels,
    *,
    method: str = "ridge",
    folds: int = 5,
    ridges: Iterable[float] | None = None,
    standardise: bool = True,
    control: str = "auto",
    cluster: str | None = "document",
    layers: Sequence[int] | None = None,
    site: str = "resid",
    seed: int = 0,
    iterations: int = 1000,
    task: str | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Accuracy of linear probes at every layer, cross-validated over whole documents.

    Least squares and ridge classifiers (one-hot targets, the class of greatest score) are exact:
    XᵀX comes fold by fold and the class sums are XᵀY, so that two readings of a layer give every
    classifier, and a third its predictions, in memory that does not depend on the number of
    samples but for a few numbers each. They are scikit-learn's ``RidgeClassifier``.

    Parameters
    ----------
    run : Run
    labels : str, (n_samples,) array, or function
        A sample coordinate (document metadata), a label for each sample, or a function of
        ``run.samples`` that gives them. Samples whose label is None, NaN or "" are left out.
    method : {"ridge", "least_squares", "logistic"}
        "least_squares": no penalty, the solution of smallest norm. "logistic": scikit-learn's,
        which holds one layer's rows in memory.
    folds : int
        Outer folds, of whole clusters; at least three where a ridge is to be chosen.
    ridges : iterable of float, optional
        Of several each outer fold takes the best in an inner cross-validation over its training
        folds: for "ridge" by squared error, from moments alone, in multiples of n times the mean
        variance of the (scaled) features; for "logistic" by log loss, α = 1/C as it is. Default:
        10⁻⁶ … 1 for "ridge", 1 for "logistic".
    standardise : bool
        Whether features are divided by their standard deviation in the training folds. Features
        that do not vary there are not used.
    control : {"auto", "clusters", "samples"}
        How labels are shuffled for the control: whole clusters exchange theirs, which keeps what
        the samples of one share, or labels are permuted over all samples. "auto": the first where
        every cluster has one label.
    cluster : str or None
        Sample coordinate whose values mark dependent samples, kept in one fold; None: each
        sample is its own.
    layers : sequence of int, optional
        Default: all in view.
    site : str
    seed : int
        Of the folds and of the control.
    iterations : int
        Most iterations of a logistic fit.
    task : str, optional
        What the labels are called; default: the coordinate's name.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        Over ``layer``: ``accuracy`` and ``macro_f1``; the same of the control,
        ``control_accuracy`` and ``control_macro_f1``; ``gain`` = accuracy less the majority
        baseline's and ``selectivity`` = accuracy less the control's, both paired; and
        ``majority`` (no dimension), the accuracy of always giving the commonest class of the
        training folds. Each with ``_low`` and ``_high``, the ends of 95% intervals over clusters
        that take the classifiers as given: Wilson's at the effective sample size for accuracies,
        Student's t for differences, the jackknife over up to 50 groups of clusters for F1. Also
        ``recall`` (layer, class), ``class_count`` (class) and ``ridge`` (layer, fold), α as
        scikit-learn takes it. F1 of a class that is neither there nor predicted counts 0.
        ``attrs["untrained"]`` names classes that lie in one fold only, which cannot be told
        right; a warning does so too.

    Raises
    ------
    AnalysisError
        Labels, folds, options or clusters that do not allow it.
    SiteError
        A site or layer that is not in view.
    MissingDependencyError
        "logistic" without scikit-learn.
    NonFiniteError
        An activation is NaN or infinite.
    """
    penalties = _penalties(method, ridges, folds)
    chosen = _layers(run, site, layers)
    found = make_task(run, labels, folds, cluster, seed)
    control_codes, kind = shuffled(found, control, seed)
    targets = [found.codes, control_codes]
    groups = row_parts(found.run, cluster, GROUPS, seed)
    parts: dict[str, list[Any]] = {}
    bar = tqdm(
        chosen,
        desc="probe",
        unit="layer",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    for layer in bar:
        predicted, alphas = _predictions(
            found, targets, method, penalties, standardise, site, layer, iterations
        )
        for name, interval in _measures(found, targets, predicted, groups).items():
            parts.setdefault(name, []).append(interval)
        parts.setdefault("ridge", []).append(alphas)
        right = predicted[0] == found.codes
        parts.setdefault("recall", []).append(
            np.bincount(found.codes, right, len(found.classes)) / np.bincount(found.codes)
        )
    dataset = xr.Dataset(coords={"layer": chosen, "class": found.classes, "fold": np.arange(folds)})
    dataset["recall"] = (("layer", "class"), np.stack(parts.pop("recall")))
    dataset["ridge"] = (("layer", "fold"), np.stack(parts.pop("ridge")))
    dataset["class_count"] = ("class", np.bincount(found.codes))
    for name, intervals in parts.items():
        ends = [np.array([interval[end] for interval in intervals]) for end in range(3)]
        add(dataset, name, ("layer",), stats.Interval(*ends))
    majority = stats.proportion(_majority(found) == found.codes, found.clusters, level=LEVEL)
    add(dataset, "majority", (), majority)
    own = labels if isinstance(labels, str) else str(getattr(labels, "__name__", "labels"))
    of_what = own if task is None else task
    dataset.attrs = {
        "task": of_what,
        "method": method,
        "control": kind,
        "samples": found.run.n_samples,
        "left_out": found.left_out,
        "untrained": found.untrained,
        "clusters": len(found.codes) if found.clusters is None else len(np.unique(found.clusters)),
        "cluster": cluster or "sample",
        "folds": folds,
        "level": LEVEL,
    }
    record = results.provenance(
        "analysis.probing.accuracy",
        runs={"samples": found.run},
        task=of_what,
        method=method,
        folds=folds,
        ridges=list(penalties),
        standardise=standardise,
        control=kind,
        cluster=cluster,
        site=site,
        layers=chosen,
        seed=seed,
        iterations=iterations if method == "logistic" else None,
    )
    return results.label(dataset, "probing", f"{run.model} on {run.corpus}: {of_what}", record)


def _predictions(
    task: Task,
    targets: Sequence[NDArray[np.intp]],
    method: str,
    penalties: Sequence[float],
    standardise: bool,
    site: str,
    layer: int,
    iterations: int,
) -> tuple[NDArray[np.int32], list[float]]:
    """(targets, samples) predicted classes, and each fold's α for the true labels."""
    if method == "logistic":
        rows = logistic.read_layer(task.run, site, layer)
        found = [
            logistic.cross_validated(rows, task.folds, codes, penalties, standardise, iterations)
            for codes in targets
        ]
        return np.stack([predicted for predicted, _ in found]), found[0][1]
    shift, moments = fold_moments(task.run, site, layer, task.folds, targets, len(task.classes))
    classifiers = cross_validated(shift, moments, penalties, standardise)
    predicted = predict(task.run, site, layer, task.folds, classifiers)
    return predicted, [one.ridge for one in classifiers[0]]


def _measures(
    task: Task,
    targets: Sequence[NDArray[np.intp]],
    predicted: NDArray[np.int32],
    groups: NDArray[np.intp] | None,
) -> dict[str, stats.Interval]:
    clusters = task.clusters
    hits = predicted == np.stack(targets)
    found = {}
    for name, right, codes, guess in zip(("", "control_"), hits, targets, predicted, strict=True):
        found[f"{name}accuracy"] = stats.proportion(right, clusters, level=LEVEL)
        found[f"{name}macro_f1"] = _f1_interval(codes, guess, len(task.classes), groups)
    base = _majority(task) == task.codes
    for name, other in (("gain", base), ("selectivity", hits[1])):
        difference = hits[0].astype(np.int8) - other
        found[name] = stats.mean(difference, clusters, level=LEVEL)
    return found


def _f1_interval(
    codes: NDArray[np.intp],
    guess: NDArray[np.int32],
    classes: int,
    groups: NDArray[np.intp] | None,
) -> stats.Interval:
    count = 1 if groups is None else int(groups.max()) + 1
    of = np.zeros(len(codes), np.intp) if groups is None else groups
    tables = np.bincount((of * classes + codes) * classes + guess, minlength=count * classes**2)
    tables = tables.reshape(count, classes, classes)
    whole = tables.sum(axis=0)
    left_out = np.array([macro_f1(whole - table) for table in tables])
    found = jackknife.interval(macro_f1(whole), left_out, tables.sum(axis=(1, 2)), level=LEVEL)
    return stats.Interval(found.value, np.maximum(found.low, 0.0), np.minimum(found.high, 1.0))


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Mean over classes of 2 TP/(2 TP + FP + FN), from counts (true class, predicted class)."""
    right = np.diagonal(confusion).astype(np.float64)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float(np.divide(2 * right, both, out=np.zeros_like(right), where=both > 0).mean())


def _majority(task: Task) -> NDArray[np.intp]:
    """The commonest class of the other folds, for each sample; the first of ties."""
    counts = np.zeros((task.n_folds, len(task.classes)), np.int64)
    np.add.at(counts, (task.folds, task.codes), 1)
    best: NDArray[np.intp] = (counts.sum(axis=0) - counts).argmax(axis=1)
    return best[task.folds]


def _penalties(method: str, ridges: Iterable[float] | None, folds: int) -> list[float]:
    if method not in METHODS:
        raise AnalysisError(f"method={method!r} is not known: choose {', '.join(METHODS)}")
    if method == "least_squares":
        if ridges is not None:
            raise AnalysisError("least_squares takes no ridges; choose method='ridge'")
        return [0.0]
    default = RIDGES if method == "ridge" else (1.0,)
    values = sorted({float(r) for r in (default if ridges is None else ridges)})
    lowest = 0.0 if method == "ridge" else np.nextafter(0, 1)
    if not values or not all(np.isfinite(r) and r >= lowest for r in values):
        raise AnalysisError(
            f"ridges={values}: give numbers {'≥ 0' if method == 'ridge' else '> 0'}"
        )
    if len(values) > 1 and folds < 3:
        raise AnalysisError(
            f"folds={folds}: choosing among {len(values)} ridges inside the training folds needs "
            "at least 3; give more folds or one ridge"
        )
    if method == "logistic":
        logistic.require()
    return values


def _layers(run: Run, site: str, layers: Sequence[int] | None) -> list[int]:
    if site not in run.sites:
        raise SiteError(
            f"site {site!r} asked for, but {run.model}/{run.corpus} has {', '.join(run.sites)}"
        )
    held = list(run.sites[site])
    wanted = held if layers is None else [held[k] if k < 0 else int(k) for k in layers]
    for layer in wanted:
        if layer not in held:
            raise SiteError(
                f"layer {layer} asked for, but {run.model}/{run.corpus} has {held} in view"
            )
    return sorted(set(wanted))
