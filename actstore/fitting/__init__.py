"""Linear maps between layers: fitted from a Gram, scored from a Gram, kept in one file."""

from actstore.fitting.files import load_maps
from actstore.fitting.least_squares import fit
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.procrustes import procrustes
from actstore.fitting.reduced_rank import r2_by_rank
from actstore.fitting.ridge import RidgePath, ridge_path
from actstore.fitting.scores import identity_r2, mse, r2, r2_interval
from actstore.fitting.validation import cross_validate

__all__ = [
    "LinearMap",
    "MapSet",
    "RidgePath",
    "cross_validate",
    "fit",
    "identity_r2",
    "load_maps",
    "mse",
    "procrustes",
    "r2",
    "r2_by_rank",
    "r2_interval",
    "ridge_path",
]
