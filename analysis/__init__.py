"""Analyses of stored transformer activations, after two papers and beyond them.

Each topic is a module whose functions return a labelled ``xarray.Dataset`` with its
provenance in ``attrs``: ``analysis.prediction.curves(...)``, ``analysis.r2.heat_maps(...)``.
``analysis.plots`` draws each of them and ``analysis.report`` makes one HTML file of them.
Modules are imported on first use, so that matplotlib is needed only where something is drawn.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = [
    "alternation",
    "annotation",
    "between",
    "checkpoints",
    "early_exit",
    "folding",
    "future_lens",
    "influence",
    "jackknife",
    "linearity",
    "peeking",
    "perplexity",
    "plots",
    "prediction",
    "pretraining",
    "probing",
    "pruning",
    "r2",
    "report",
    "results",
    "schedules",
    "scored_windows",
    "similarity",
    "spectra",
    "stats",
    "submodules",
    "tokens",
    "training",
    "transfer",
    "transport",
    "tuned_lens",
    "windows",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
