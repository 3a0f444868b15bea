"""The joint Gram: one pass over a run's rows gives the statistics of all pairs of layers."""

from actstore.grams.aligned import align
from actstore.grams.columns import Column, Columns
from actstore.grams.computing import gram, plan_gram
from actstore.grams.executing import compute_gram
from actstore.grams.parts import Parts, make_parts
from actstore.grams.planning import make_plan
from actstore.grams.plans import Plan
from actstore.grams.source import RowSource
from actstore.grams.statistics import Gram

__all__ = [
    "Column",
    "Columns",
    "Gram",
    "Parts",
    "Plan",
    "RowSource",
    "align",
    "compute_gram",
    "gram",
    "make_parts",
    "make_plan",
    "plan_gram",
]
