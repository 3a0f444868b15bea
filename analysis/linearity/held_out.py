"""The linearity score out of sample: maps of some documents, judged on others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError
from actstore.fitting import MapSet, fit
from actstore.fitting.squared_errors import Evaluation, check_model
from actstore.grams import Gram, gram
from analysis import jackknife, stats
from analysis.linearity.kernel import Pair
from analysis.windows import Window

if TYPE_CHECKING:
    from actstore.store import Run

HELD_OUT = ("held_out", "held_out_no_residual")


def check_held_out(fitted: Run | Gram, judge: Run | Gram) -> None:
    """AnalysisError for rows of another model, or for the very rows the maps are fitted on."""
    if isinstance(fitted, Gram) and isinstance(judge, Gram):
        check_model(fitted.provenance, judge)
    elif (
        not isinstance(fitted, Gram) and not isinstance(judge, Gram) and fitted.key() == judge.key()
    ):
        raise AnalysisError("held_out is the run itself: split it by document with run.split(0.25)")
    if fitted.model != judge.model:
        raise AnalysisError(
            f"held_out is of {judge.model!r}, the maps are of {fitted.model!r}: give samples of "
            "one model"
        )


def held_out_statistics(
    window: Window,
    judge: Run | Gram,
    site: str,
    division: NDArray[np.intp] | None,
    level: float,
    progress: bool | None,
) -> dict[tuple[int, int], stats.Interval]:
    """Of each pair, (2,) `HELD_OUT` with intervals over groups of the judge's documents."""
    maps = fit(window.moments, pairs=window.pairs, intercept=True, progress=False)
    layers = [column.layer for column in window.moments.columns]
    rows = (
        judge
        if isinstance(judge, Gram)
        else gram(
            judge,
            sites=site,
            layers=layers,
            pairs=window.pairs,
            parts=division,
            cache=False,
            progress=False,
        )
    )
    found = {}
    bar = tqdm(
        window.pairs,
        desc="held out",
        unit="pair",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    for x, y in bar:
        full, *rest = _energies(maps, rows, (x, y))
        parts = np.array(rest).reshape(-1, 3)
        sizes = np.array([part.n for part in rows.parts])
        value = _shares(full)
        left_out = [
            _shares(np.array([full[0] - part[0], *_spreads(rows.without(k), x, y)]))
            for k, part in enumerate(parts)
        ]
        left = np.array(left_out).reshape(-1, 2)
        interval = jackknife.interval(value, left, sizes, level=level)
        found[x, y] = stats.Interval(interval.value, interval.low, np.minimum(interval.high, 1.0))
    return found


def _energies(maps: MapSet, rows: Gram, pair: tuple[int, int]) -> list[np.ndarray]:
    """(3,) squared error, ‖Y_c‖², ‖Y_c − X_c‖²: of all rows, then the error of each part."""
    found = []
    place = tuple(maps.columns.index(key) for key in pair)
    for share in (rows, *rows.parts):
        errors = Evaluation(maps.columns, share, maps.provenance).errors(
            maps, place[0], [place[1]]
        )[place[1]]
        found.append(np.array([errors.sum(), *_spreads(share, *pair)]))
    return found


def _spreads(rows: Gram, x: int, y: int) -> tuple[float, float]:
    moments = Pair.of(rows, x, y)
    return moments.energy_y, moments.energy_output


def _shares(energies: np.ndarray) -> np.ndarray:
    error, target, output = energies
    return np.array(
        [
            1 - error / target if target > 0 else np.nan,
            1 - error / output if output > 0 else np.nan,
        ]
    )
