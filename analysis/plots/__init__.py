"""Figures of results; needs the extra ``plots``.

Each function takes what an analysis returned and gives a ``matplotlib.figure.Figure`` with a
transparent background and colours that hold on light and dark pages, for all kinds of sight::

    analysis.plots.precision(curves).savefig("precision.svg")
"""

from analysis.plots.alternation import alternation
from analysis.plots.annotation import plausibility
from analysis.plots.early_exit import early_exit
from analysis.plots.prediction import precision, surprisal
from analysis.plots.r2 import r2_heat_maps
from analysis.plots.svg import inline_svg
from analysis.plots.transfer import transfer

__all__ = [
    "alternation",
    "early_exit",
    "inline_svg",
    "plausibility",
    "precision",
    "r2_heat_maps",
    "surprisal",
    "transfer",
]
