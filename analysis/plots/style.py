"""One look for all figures, without touching matplotlib's global settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from actstore.errors import MissingDependencyError

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingDependencyError(
        "figures need matplotlib; install it with: pip install 'actstore[plots]'"
    ) from error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "COLOURS",
    "INK",
    "LINE_STYLES",
    "NAMES",
    "MaxNLocator",
    "legend_below",
    "panels",
    "style",
]

# Mid-tones: at least 3:1 against white and against near-black. Blue, orange, green and pink stay
# apart for the common kinds of colour blindness, and line styles tell them apart without colour.
INK = "#7b7f86"
COLOURS = ("#2a7fbf", "#d9730d", "#2a9d6f", "#c45d9b", "#8a8f2a", "#8067c9")
LINE_STYLES: dict[str, Any] = {
    "mat": "-",
    "id": "--",
    "attn": "-.",
    "ffn": ":",
    "ln": (0, (4, 1, 1, 1, 1, 1)),
}
NAMES = {
    "mat": "mat (fitted map)",
    "id": "id (no map)",
    "attn": "attention linear",
    "ffn": "feed-forward linear",
    "ln": "norms linear",
}

_SETTINGS: Any = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "figure.dpi": 100,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "grid.alpha": 0.3,
    "grid.color": INK,
    "grid.linewidth": 0.5,
    "legend.facecolor": "none",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "savefig.facecolor": "none",
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "actstore",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 9,
    "ytick.color": INK,
    "ytick.labelsize": 9,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults with this package's settings, for as long as the block lasts."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in a row, each of a width and height in inches."""
    figure = Figure(figsize=(count * width, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def legend_below(figure: Figure, axis: Axes, columns: int = 2) -> None:
    """One legend below all panels, where it hides no line; long labels one under the other."""
    handles, labels = axis.get_legend_handles_labels()
    characters = 13 * figure.get_figwidth()  # what a line holds at the legend's size
    longest = max(map(len, labels), default=0) + 6
    fitting = max(1, min(columns, int(characters // longest)))
    figure.legend(handles, labels, loc="outside lower center", ncols=fitting)
