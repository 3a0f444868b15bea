"""Figures of results; needs the extra ``plots``.

Each function takes what an analysis returned and gives a ``matplotlib.figure.Figure`` with a
transparent background and colours that hold on light and dark pages, for all kinds of sight::

    analysis.plots.precision(curves).savefig("precision.svg")
"""

from analysis.plots.alternation import alternation
from analysis.plots.annotation import plausibility
from analysis.plots.between import between
from analysis.plots.early_exit import early_exit
from analysis.plots.folding import folding
from analysis.plots.lenses import future_lens, tuned_lens
from analysis.plots.linearity import (
    angular_distance,
    checkpoints,
    influence,
    linearity,
    linearity_errors,
)
from analysis.plots.prediction import precision, surprisal
from analysis.plots.pretraining import pretraining
from analysis.plots.probing import probing
from analysis.plots.pruning import pruning
from analysis.plots.r2 import r2_heat_maps
from analysis.plots.similarity import similarity, spectra
from analysis.plots.svg import inline_svg
from analysis.plots.transfer import transfer
from analysis.plots.transport import transport

__all__ = [
    "alternation",
    "angular_distance",
    "between",
    "checkpoints",
    "early_exit",
    "folding",
    "future_lens",
    "influence",
    "inline_svg",
    "linearity",
    "linearity_errors",
    "plausibility",
    "precision",
    "pretraining",
    "probing",
    "pruning",
    "r2_heat_maps",
    "similarity",
    "spectra",
    "surprisal",
    "transfer",
    "transport",
    "tuned_lens",
]
