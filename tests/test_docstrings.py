"""Public names say what they take: every parameter of every function is in its docstring."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from typing import Any

import pytest

import actstore
import analysis

ROOMS = ("corpus", "models", "store", "extraction", "grams", "fitting")


def _public() -> dict[str, Any]:
    """Functions and classes of the rooms' and the analyses' public names."""
    found: dict[str, Any] = {
        f"actstore.{name}": getattr(actstore, name) for name in actstore.__all__
    }
    for room in ROOMS:
        module = import_module(f"actstore.{room}")
        found |= {f"actstore.{room}.{name}": getattr(module, name) for name in module.__all__}
    for entry in pkgutil.walk_packages(analysis.__path__, "analysis."):
        module = import_module(entry.name)
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if (
                own
                and not name.startswith("_")
                and (inspect.isroutine(value) or isinstance(value, type))
            ):
                found[f"{entry.name}.{name}"] = value
    unique = {id(value): name for name, value in reversed(found.items())}
    return {name: found[name] for name in sorted(unique.values())}


PUBLIC = _public()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert (inspect.getdoc(PUBLIC[name]) or "").strip()


FACE = [
    name
    for name, value in PUBLIC.items()
    if inspect.isfunction(value) and name.startswith("actstore.")
]


@pytest.mark.parametrize("name", FACE)
def test_every_parameter_is_described(name: str) -> None:
    described = inspect.getdoc(PUBLIC[name]) or ""
    parameters = list(inspect.signature(PUBLIC[name]).parameters)
    if "Parameters\n" not in described:
        # a short function whose one sentence says all
        assert len(parameters) <= 4
        return
    section = described.split("Parameters\n---", 1)[1].split("\n\n\n")[0]
    for parameter in parameters:
        assert re.search(rf"(^|[\s,*]){re.escape(parameter)}( ?:|,|$)", section, re.M), parameter
