"""Linear maps between layers: fitted from a Gram, scored from a Gram, kept in one file."""

from actstore.fitting.files import load_maps
from actstore.fitting.least_squares import fit
from actstore.fitting.maps import LinearMap, MapSet
from actstore.fitting.scores import identity_r2, r2

__all__ = ["LinearMap", "MapSet", "fit", "identity_r2", "load_maps", "r2"]
