"""Maps for a whole path of ridge values, from one eigendecomposition per source layer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from actstore.fitting.inputs import as_gram, by_source, one_ridge, ridge_values
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.solving import Spectrum, spectrum
from actstore.fitting.squared_errors import Evaluation, squared_errors
from actstore.fitting.tables import attributes, check_average, labels, r2_values, tabulate
from actstore.grams.columns import Columns
from actstore.grams.pairs import layers_of, resolve_pairs
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram
from actstore.grams.threads import available_cores, one_blas_thread


def ridge_path(
    on: Gram | RowSource,
    ridges: Iterable[float],
    *,
    pairs: str | Iterable[Any] = "all",
    intercept: bool = False,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    progress: bool | None = None,
) -> RidgePath:
    """Maps between layers for many values of α at the cost of about one.

    With XᵀX = V Λ Vᵀ, A(α) = V (Λ + αI)⁻¹ VᵀXᵀY ("The Elements of Statistical Learning", §3.4.1).
    Eigenvalues below ε·d of the largest are taken for zero.

    Parameters
    ----------
    on : Run or Gram
    ridges : iterable of float
        α ≥ 0.
    pairs, intercept, sites, layers, progress
        As for `fit`.

    Returns
    -------
    RidgePath

    Raises
    ------
    FitError
        A value that is not a number ≥ 0, or unknown pairs.
    """
    values = ridge_values(ridges)
    pairs = pairs if isinstance(pairs, str) else list(pairs)
    layers = layers_of(pairs) if layers is None else layers
    moments = as_gram(on, sites, layers, progress, pairs=pairs)
    return RidgePath(moments, values, resolve_pairs(moments.columns, pairs), intercept)


@dataclass(frozen=True)
class _Factored:
    """One source layer: its eigenvectors, and what they make of each target."""

    spectrum: Spectrum
    projected: Mapping[int, np.ndarray]

    def inner(self, target: int, ridge: float) -> np.ndarray:
        """(rank, e): A = V @ this."""
        return self.projected[target] / (self.spectrum.values + ridge)[:, None]


class RidgePath(Mapping[float, MapSet]):
    """Maps by ridge value: ``path[0.1]`` is a `MapSet`, made when it is asked for.

    Attributes
    ----------
    ridges : tuple of float
        Increasing.
    columns : Columns
    places : list of (source place, target place)
    """

    def __init__(
        self,
        moments: Gram,
        ridges: Sequence[float],
        places: Sequence[tuple[int, int]],
        intercept: bool,
    ) -> None:
        self.ridges = tuple(ridges)
        self.columns: Columns = moments.columns
        self.places = list(places)
        self.intercept = intercept
        self.provenance = {**moments.provenance, "n": moments.n, "intercept": intercept}
        keys = moments.layers
        # Centred moments are of one row fewer.
        self._rows = moments.rows - intercept
        self._means = {k: moments.mean(key) for k, key in enumerate(keys)}
        eps = moments.eps

        def factor(source: int, targets: Sequence[int]) -> _Factored:
            inner = moments.cross(keys[source], keys[source], centred=intercept)
            found = spectrum(inner, eps)
            return _Factored(
                found,
                {
                    t: found.vectors.T @ moments.cross(keys[source], keys[t], centred=intercept)
                    for t in targets
                },
            )

        with one_blas_thread(), ThreadPoolExecutor(available_cores()) as pool:
            jobs = {s: pool.submit(factor, s, t) for s, t in by_source(self.places).items()}
            self._factored = {source: job.result() for source, job in jobs.items()}

    def __getitem__(self, ridge: float) -> MapSet:
        if ridge not in self.ridges:
            known = ", ".join(f"{value:g}" for value in self.ridges)
            raise KeyError(f"ridge {ridge!r} is not one of {known}; .maps(ridge) takes any")
        return self.maps(ridge)

    def __iter__(self) -> Iterator[float]:
        return iter(self.ridges)

    def __len__(self) -> int:
        return len(self.ridges)

    def __repr__(self) -> str:
        return (
            f"<RidgePath: {len(self.places)} maps of {self.columns!r}, {len(self)} values of ridge "
            f"from {self.ridges[0]:g} to {self.ridges[-1]:g}>"
        )

    def maps(self, ridge: float) -> MapSet:
        """Maps for any α ≥ 0, each made when it is asked for; a warning names the sources that
        their Gram alone does not settle."""
        alpha = one_ridge(ridge)
        warn_of(self.rough([alpha]), self.columns)
        return MapSet(_PathMaps(self, alpha), self.columns, {**self.provenance, "ridge": alpha})

    def rough(self, ridges: Iterable[float]) -> set[int]:
        """Places of sources too ill-conditioned for their moments, with the least of these α."""
        least = min(ridges)
        return {
            source
            for source, factored in self._factored.items()
            if factored.spectrum.rough(least, self._rows)
        }

    def at(self, place: tuple[int, int], ridge: float) -> LinearMap:
        """The map of one pair of places for any α ≥ 0."""
        source, target = place
        factored, keys = self._factored[source], self.columns.keys()
        matrix = factored.spectrum.vectors @ factored.inner(target, ridge)
        bias = self._means[target] - self._means[source] @ matrix if self.intercept else None
        return LinearMap(
            keys[source],
            keys[target],
            matrix,
            bias,
            factored.spectrum.rank,
            factored.spectrum.condition,
            "eigh",
            factored.spectrum.freedom(ridge) + self.intercept,
            ridge,
        )

    def degrees_of_freedom(self) -> xr.DataArray:
        """(ridge, source): Σ λ/(λ + α), and one more for an intercept."""
        sources = sorted(self._factored)
        values = [
            [self._factored[source].spectrum.freedom(ridge) + self.intercept for source in sources]
            for ridge in self.ridges
        ]
        names = labels(self.columns)
        coords = {"ridge": list(self.ridges), "source": [names[k] for k in sources]}
        return xr.DataArray(values, coords, ("ridge", "source"), name="degrees_of_freedom")

    def r2(
        self,
        on: Gram | RowSource,
        *,
        average: str | None = "uniform",
        progress: bool | None = None,
    ) -> xr.DataArray:
        """Coefficient of determination for every α and pair, from a Gram alone.

        Parameters
        ----------
        on, average, progress
            As for `actstore.fitting.r2`.

        Returns
        -------
        DataArray (ridge, source, target), or (ridge, source, target, feature)
        """
        check_average(average)
        layers = self.columns.keys() if len(self.columns.sites) == 1 else None
        pairs = self.columns.keys_of(self.places)
        moments = as_gram(on, self.columns.sites, layers, progress, pairs=pairs)
        rows = Evaluation(self.columns, moments, self.provenance)

        def values(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
            found = self.errors(rows, source, targets)
            return {t: r2_values(sse, rows.total(t), average) for t, sse in found.items()}

        trailing = "feature" if average is None else None
        leading = {"ridge": self.ridges}
        result = tabulate(self.columns, self.places, values, "r2", leading, trailing=trailing)
        warn_of(self.rough(self.ridges), self.columns)
        rows.warn()
        result.attrs = attributes(
            "coefficient of determination", self.provenance, moments, average=average or "none"
        )
        return result

    def errors(
        self, rows: Evaluation, source: int, targets: Sequence[int]
    ) -> dict[int, np.ndarray]:
        """(ridge, e) squared errors by target: in the eigenvectors' own coordinates, so that the
        moments are turned once for all values of α."""
        factored = self._factored[source]
        vectors = factored.spectrum.vectors
        inner = rows.inner(source)
        turned = vectors.T @ inner @ vectors
        largest = float(np.diagonal(turned).max(initial=0.0))
        found = {}
        for target in targets:
            here = rows.moments(source, target, inner)
            here = replace(
                here, inner=turned, cross=vectors.T @ here.cross, mean_x=here.mean_x @ vectors
            )
            mean = self._means[source] @ vectors
            sse = []
            for ridge in self.ridges:
                matrix = factored.inner(target, ridge)
                bias = self._means[target] - mean @ matrix if self.intercept else None
                sse.append(squared_errors(matrix, bias, here))
                weighed = largest * np.einsum("ij,ij->j", matrix, matrix)
                if rows.doubts(weighed, here.total):
                    rows.rough.add((source, target))
            found[target] = np.stack(sse)
        return found


def warn_of(rough: Iterable[int], columns: Columns) -> None:
    """One line for sources that their moments' eigenvalues do not settle."""
    names = [str(labels(columns)[k]) for k in sorted(rough)]
    if names:
        warnings.warn(
            f"source layers {', '.join(names)} are too ill-conditioned for their Gram's "
            "eigenvalues: maps with so small a ridge may be inexact; fit(run, ...) can use rows",
            stacklevel=3,
        )


class _PathMaps(Mapping[tuple[int, int], LinearMap]):
    """The maps of one α, made one by one."""

    def __init__(self, path: RidgePath, ridge: float) -> None:
        self._path = path
        self._ridge = ridge

    def __getitem__(self, place: tuple[int, int]) -> LinearMap:
        if place not in self:
            raise KeyError(place)
        return self._path.at(place, self._ridge)

    def __contains__(self, place: object) -> bool:
        return place in self._path.places

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._path.places)

    def __len__(self) -> int:
        return len(self._path.places)
