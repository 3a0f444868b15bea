"""Orthogonal Procrustes maps: rotations, with a scale where asked for, from a Gram alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from actstore.errors import FitError
from actstore.fitting.inputs import as_gram
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.tables import every_pair
from actstore.grams.pairs import layers_of, resolve_pairs
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram


def procrustes(
    on: Gram | RowSource,
    *,
    pairs: str | Iterable[Any] = "all",
    centre: bool = True,
    scale: bool = False,
    sites: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    progress: bool | None = None,
) -> MapSet:
    """Fit an orthogonal map between every pair of layers asked for.

    Q = argmin Σ‖y − s x Q‖² over QᵀQ = I. With XᵀY = U S Vᵀ, Q = U Vᵀ, and with a scale
    s = tr S / tr XᵀX (Schönemann 1966, "A generalized solution of the orthogonal Procrustes
    problem"; Gower and Dijksterhuis 2004, §4.6 for the scale).

    Parameters
    ----------
    on : Run or Gram
    pairs : as for `fit`
        Both layers of a pair have one width.
    centre : bool
        Whether both layers are taken about their means; the maps then have a bias.
    scale : bool
        Whether to fit s > 0; else it is 1.
    sites, layers, progress : optional
        As for `fit`.

    Returns
    -------
    MapSet
        ``method`` is "procrustes"; ``rank`` and ``condition`` are those of XᵀY, and where the rank
        is below the width Q is one of several that are equally good.

    Raises
    ------
    FitError
        Layers of different widths, or unknown pairs.
    """
    pairs = pairs if isinstance(pairs, str) else list(pairs)
    layers = layers_of(pairs) if layers is None else layers
    moments = as_gram(on, sites, layers, progress, pairs=pairs)
    columns, keys = moments.columns, moments.layers
    places = resolve_pairs(columns, pairs)
    for source, target in places:
        if columns[source].width != columns[target].width:
            raise FitError(
                f"an orthogonal map keeps the width, but {columns[source]} has "
                f"{columns[source].width} features and {columns[target]} has "
                f"{columns[target].width}: choose other pairs"
            )
    eps = moments.eps
    maps: dict[tuple[int, int], LinearMap] = {}

    def rotate(source: int, targets: Sequence[int]) -> dict[int, np.ndarray]:
        x = keys[source]
        spread = moments.variance(x)
        if not centre:
            spread = spread + moments.n * moments.mean(x) ** 2
        for target in targets:
            y = keys[target]
            left, values, right = np.linalg.svd(moments.cross(x, y, centred=centre))
            matrix = left @ right
            if scale:
                matrix *= values.sum() / spread.sum() if spread.sum() > 0 else 1.0
            rank = int((values > eps * len(values) * values[0]).sum())
            condition = float(values[0] / values[rank - 1]) if rank else float("inf")
            bias = moments.mean(y) - moments.mean(x) @ matrix if centre else None
            maps[source, target] = LinearMap(x, y, matrix, bias, rank, condition, "procrustes")
        return {}

    every_pair(places, rotate)
    provenance = {
        **moments.provenance,
        "n": moments.n,
        "ridge": 0.0,
        "intercept": centre,
        "orthogonal": {"scale": scale},
    }
    return MapSet({place: maps[place] for place in places}, columns, provenance)
