"""Results with their provenance, saved to disk and loaded back.

A result is an ``xarray.Dataset`` whose ``attrs`` say what it is: ``kind`` (which analysis),
``title`` (what a figure of it is called), and ``provenance`` (JSON: what it was computed from
and how). On disk it is a Zarr v3 folder that ``xarray.open_zarr`` reads; `load` also checks that
nothing in it was lost or changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import xarray as xr

from actstore.errors import AnalysisError, CorruptionError
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run

_DIGEST = "actstore_digest"


def provenance(
    function: str,
    *,
    runs: Mapping[str, Run] | None = None,
    model: LanguageModel | None = None,
    maps: Any = None,
    **parameters: object,
) -> dict[str, Any]:
    """What a result was computed from and how, ready for JSON.

    Parameters
    ----------
    function : str
        Dotted name of the analysis.
    runs : mapping of role to Run
        Their labels and keys are recorded; a key determines every number of the run.
    model : LanguageModel, optional
        Recorded by its ``describe()``.
    maps : MapSet, optional
        Recorded by its ``provenance``.
    **parameters
        Arguments of the analysis, seeds included.

    Returns
    -------
    dict
        Without any timestamp: the same computation has the same provenance.
    """
    record: dict[str, Any] = {"function": function, "parameters": parameters}
    if runs:
        record["runs"] = {
            role: {
                "model": run.model,
                "corpus": run.corpus,
                "samples": run.n_samples,
                "key": run.key(),
            }
            for role, run in runs.items()
        }
    if model is not None:
        record["model"] = model.describe()
    if maps is not None:
        record["maps"] = maps.provenance
    record["versions"] = {
        name: _version(name) for name in ("actstore", "numpy", "scipy", "torch", "xarray")
    }
    plain: dict[str, Any] = json.loads(json.dumps(record, default=_plain))
    return plain


def label(
    dataset: xr.Dataset, kind: str, title: str, provenance: Mapping[str, object]
) -> xr.Dataset:
    """The Dataset with ``kind``, ``title`` and ``provenance`` among its attributes."""
    return dataset.assign_attrs(kind=kind, title=title, provenance=json.dumps(provenance))


def fitted_on(dataset: xr.Dataset) -> str:
    """``fitted on 9,000 samples`` for results of maps that say so, else ``fitted``."""
    n = read_provenance(dataset).get("maps", {}).get("n")
    return f"fitted on {count(n, 'sample')}" if isinstance(n, int) else "fitted"


def read_provenance(dataset: xr.Dataset) -> dict[str, Any]:
    """The provenance of a result as a dict; empty if it carries none."""
    record: dict[str, Any] = json.loads(dataset.attrs.get("provenance", "{}"))
    return record


def save(dataset: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a result to a Zarr folder, whole or not at all.

    Parameters
    ----------
    dataset : xarray.Dataset
        Numbers, booleans and strings.
    path : path
        Folder to make, by custom ending in ``.zarr``. An earlier result there is replaced;
        anything else there is left alone and refused.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    AnalysisError
        Something else is at the path, or the Dataset holds objects that are not strings.
    """
    target = Path(path)
    if target.exists() and not _is_result(target):
        raise AnalysisError(f"{target} exists and is not a saved result; give another path")
    plain = _plain_strings(dataset.load())
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}.{uuid4().hex}"
    try:
        attributes = {**plain.attrs, _DIGEST: _digest(plain)}
        plain.assign_attrs(attributes).drop_encoding().to_zarr(
            scratch, mode="w-", zarr_format=3, consolidated=False
        )
        if target.exists():
            shutil.rmtree(target)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def load(path: str | os.PathLike[str]) -> xr.Dataset:
    """Read a result that `save` wrote, checked against its digest.

    Returns
    -------
    xarray.Dataset
        In memory, equal to what was saved; strings come as object arrays.

    Raises
    ------
    AnalysisError
        There is no saved result at the path.
    CorruptionError
        Its contents are not those that were written.
    """
    source = Path(path)
    if not _is_result(source):
        raise AnalysisError(f"no saved result at {source}; analysis.results.save writes one")
    try:
        with xr.open_zarr(source, consolidated=False, chunks=None) as opened:
            dataset = _plain_strings(opened.load())
    except Exception as error:
        raise CorruptionError(
            f"cannot read the result at {source}: {error}; compute it anew"
        ) from error
    expected = dataset.attrs.pop(_DIGEST)
    if _digest(dataset) != expected:
        raise CorruptionError(f"the result at {source} is not what was saved; compute it anew")
    return dataset.drop_encoding()


def _is_result(path: Path) -> bool:
    try:
        metadata = json.loads((path / "zarr.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(metadata, dict) and _DIGEST in metadata.get("attributes", {})


def _plain_strings(dataset: xr.Dataset) -> xr.Dataset:
    """All strings as object arrays: the one string type that Zarr v3 specifies stores those."""
    replaced = {}
    for name, variable in dataset.variables.items():
        if variable.dtype.kind in "UTO":
            values = np.asarray(variable.values).astype(object)
            if not all(isinstance(value, str) for value in values.flat):
                raise AnalysisError(f"{name!r} holds objects that are not strings; cannot save it")
            replaced[name] = (variable.dims, values, variable.attrs)
    coordinates = {name: value for name, value in replaced.items() if name in dataset.coords}
    rest = {name: value for name, value in replaced.items() if name not in dataset.coords}
    return dataset.assign_coords(coordinates).assign(rest)


def _digest(dataset: xr.Dataset) -> str:
    """SHA-256 over names, dims, values and attributes."""
    digest = hashlib.sha256()
    attributes = {name: value for name, value in dataset.attrs.items() if name != _DIGEST}
    digest.update(json.dumps(attributes, sort_keys=True, default=_plain).encode())
    for name in sorted(dataset.variables, key=str):
        variable = dataset.variables[name]
        values = np.ascontiguousarray(variable.values)
        text = values.dtype.kind == "O"
        digest.update(
            repr((name, variable.dims, values.shape, "str" if text else values.dtype.str)).encode()
        )
        digest.update(json.dumps(values.tolist()).encode() if text else values.tobytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _plain(value: Any) -> object:
    """A JSON stand-in for numpy scalars, arrays and paths."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)
