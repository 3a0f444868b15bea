"""Ridge classifiers of one layer, solved exactly from moments; rows are only streamed.

With one-hot targets XᵀY is the sum of the rows of each class, so that XᵀX, kept fold by fold,
and class sums give every cross-validated classifier and its squared error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from actstore.grams import gram

if TYPE_CHECKING:
    from actstore.store import Run

ROWS = 4096
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Sums over some samples, about a shift common to all folds.

    Attributes
    ----------
    n : float
    total : (d,) float64
        Σ(x − shift).
    inner : (d, d) float64
        Σ(x − shift)(x − shift)ᵀ.
    counts : (targets, classes) float64
        Samples of each class, for each set of targets.
    sums : (targets, classes, d) float64
        Σ(x − shift) of each class.
    """

    n: float
    total: Floats
    inner: Floats
    counts: Floats
    sums: Floats

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.n + other.n,
            self.total + other.total,
            self.inner + other.inner,
            self.counts + other.counts,
            self.sums + other.sums,
        )


@dataclass(frozen=True)
class Classifier:
    """Scores of all classes: x ↦ x @ weights + bias.

    Attributes
    ----------
    weights : (d, classes) float64
    bias : (classes,) float64
    ridge : float
        α of the features as they were scaled.
    """

    weights: Floats
    bias: Floats
    ridge: float


def fold_moments(
    run: Run,
    site: str,
    layer: int,
    folds: NDArray[np.intp],
    targets: Sequence[NDArray[np.intp]],
    classes: int,
) -> tuple[Floats, list[Moments]]:
    """The shift, and the moments of each fold: two readings of the layer's rows."""
    joint = gram(run, sites=site, layers=[layer], parts=folds, cache=False, progress=False)
    shift = joint.shift[0]
    n_folds = len(joint.parts)
    sums = np.zeros((len(targets), n_folds * classes, run.width(site)))
    places = [folds * classes + codes for codes in targets]
    for block in run.row_blocks(ROWS):
        rows = run.read(site, layer, block).astype(np.float64) - shift
        ones, index = np.ones(len(rows)), np.arange(len(rows))
        for number, place in enumerate(places):
            which = csr_matrix((ones, (place[block.out], index)), (n_folds * classes, len(rows)))
            sums[number] += which @ rows
    found = [np.bincount(place, minlength=n_folds * classes) for place in places]
    counts = np.array(found, np.float64).reshape(len(targets), n_folds, classes)
    of_class = sums.reshape(len(targets), n_folds, classes, -1)
    return shift, [
        Moments(part.n, part.total[0], part.blocks[0, 0], counts[:, k], of_class[:, k])
        for k, part in enumerate(joint.parts)
    ]


class Training:
    """Ridge classifiers of some samples for any α, from one eigendecomposition.

    Parameters
    ----------
    rows : Moments
    standardise : bool
        Whether features are divided by their standard deviation; those that do not vary are
        left out either way.
    """

    def __init__(self, rows: Moments, standardise: bool) -> None:
        self.mean = rows.total / rows.n
        inner = rows.inner - np.outer(self.mean, rows.total)
        spread = np.diagonal(inner).copy()
        constant = spread <= 1e-12 * np.diagonal(rows.inner)
        scale = np.ones_like(spread)
        if standardise:
            np.sqrt(spread / rows.n, out=scale, where=~constant)
        self.scale = np.where(constant, 0.0, 1 / scale)
        inner *= self.scale
        inner *= self.scale[:, None]
        values, vectors = np.linalg.eigh(inner)
        kept = values > 10 * np.finfo(float).eps * len(values) * max(values[-1], 0.0)
        self.values, self.vectors = values[kept], vectors[:, kept]
        self.energy = float(np.trace(inner)) / len(inner)
        self.share = rows.counts / rows.n
        cross = rows.sums - self.share[:, :, None] * rows.total
        self.projected = np.einsum("tcd,d,dr->trc", cross, self.scale, self.vectors, optimize=True)

    def weights(self, target: int, ridge: float) -> Floats:
        """(d, classes) of the rows as they are: (X_cᵀX_c + αI)⁻¹ X_cᵀY_c, scaled back."""
        inside = self.projected[target] / (self.values + ridge)[:, None]
        return np.asarray(self.scale[:, None] * (self.vectors @ inside))

    def classifier(self, target: int, ridge: float, shift: Floats) -> Classifier:
        """With the intercept that makes it exact at the means."""
        weights = self.weights(target, ridge)
        return Classifier(weights, self.share[target] - (self.mean + shift) @ weights, ridge)

    def squared_error(self, target: int, ridge: float, rows: Moments) -> float:
        """Σ‖y − ŷ‖² over other samples, from their moments."""
        weights = self.weights(target, ridge)
        counts, sums, share = rows.counts[target], rows.sums[target], self.share[target]
        constant = (counts * (1 - 2 * share)).sum() + rows.n * (share @ share)
        # Σ (x − μ)(y − π)ᵀ and Σ (x − μ)(x − μ)ᵀ, μ and π the means of the training samples.
        apart = sums.T - np.outer(self.mean, counts)
        apart -= np.outer(rows.total - rows.n * self.mean, share)
        at_mean = self.mean @ weights
        total = rows.total @ weights
        square = np.einsum("dc,dc->", weights, rows.inner @ weights)
        square += rows.n * (at_mean @ at_mean) - 2 * (total @ at_mean)
        return float(constant - 2 * np.einsum("dc,dc->", weights, apart) + square)


def cross_validated(
    shift: Floats, folds: Sequence[Moments], ridges: Sequence[float], standardise: bool
) -> list[list[Classifier]]:
    """For each set of targets and each fold, the classifier trained on the other folds.

    Of several ridges, given in multiples of the mean variance of the scaled features (times n,
    as α is against a sum), each outer fold takes the one of least squared error in an inner
    cross-validation over its training folds, from moments alone.

    Returns
    -------
    list over targets of list over folds of Classifier
    """
    n_folds, n_targets = len(folds), len(folds[0].counts)
    errors = np.zeros((n_targets, n_folds, len(ridges)))
    if len(ridges) > 1:
        for pair in combinations(range(n_folds), 2):
            # Without two folds: judged on one of them it is an inner model of the other.
            training = Training(_sum(folds, pair), standardise)
            for inner, outer in (pair, pair[::-1]):
                for target in range(n_targets):
                    for number, ridge in enumerate(ridges):
                        errors[target, outer, number] += training.squared_error(
                            target, ridge * training.energy, folds[inner]
                        )
    best = errors.argmin(axis=2)
    found: list[list[Classifier]] = [[] for _ in range(n_targets)]
    for fold in range(n_folds):
        training = Training(_sum(folds, (fold,)), standardise)
        for target in range(n_targets):
            ridge = ridges[best[target, fold]] * training.energy
            found[target].append(training.classifier(target, ridge, shift))
    return found


def predict(
    run: Run,
    site: str,
    layer: int,
    folds: NDArray[np.intp],
    classifiers: Sequence[Sequence[Classifier]],
) -> NDArray[np.int32]:
    """(targets, samples) the class of each sample by the classifier of its fold; lowest of ties."""
    found = np.empty((len(classifiers), run.n_samples), np.int32)
    for block in run.row_blocks(ROWS):
        rows = run.read(site, layer, block).astype(np.float64)
        of = folds[block.out]
        for fold in np.unique(of):
            here = of == fold
            for number, by_fold in enumerate(classifiers):
                one = by_fold[fold]
                found[number, block.out][here] = (rows[here] @ one.weights + one.bias).argmax(
                    axis=1
                )
    return found


def _sum(folds: Sequence[Moments], without: Sequence[int]) -> Moments:
    rest = [moments for number, moments in enumerate(folds) if number not in without]
    total = rest[0]
    for moments in rest[1:]:
        total = total + moments
    return total
