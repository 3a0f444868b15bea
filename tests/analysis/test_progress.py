"""Whoever waits sees a bar, and nobody who said no."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from stored_runs import stored_run

import actstore
import analysis
from analysis import linearity, transfer

# Short whatever the run: it decodes a few samples.
WITHOUT = {"analysis.peeking.peek"}


@pytest.fixture
def run(tmp_path: Path) -> actstore.Run:
    states = np.random.default_rng(0).normal(size=(4, 60, 5)).astype(np.float32)
    return stored_run(tmp_path / "s.zarr", states, {})


def test_linearity_of_a_gram_shows_one(
    run: actstore.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = actstore.gram(run, parts=4, progress=False)
    linearity.scores(moments, progress=False)
    assert capsys.readouterr().err == ""
    linearity.scores(moments, held_out=moments, progress=True)
    shown = capsys.readouterr().err
    assert "8/8" in shown  # a rotation for each of three pairs, and all rows and less a part each
    assert "3/3" in shown


def test_transfer_of_r2_shows_one(run: actstore.Run, capsys: pytest.CaptureFixture[str]) -> None:
    maps = actstore.fit(run, pairs="to_last", progress=False)
    options = {"cluster": None, "resamples": 3}
    transfer.r2({"a": maps}, {"a": run}, progress=False, **options)
    assert capsys.readouterr().err == ""
    transfer.r2({"a": maps}, {"a": run}, progress=True, **options)
    assert "3/3" in capsys.readouterr().err


def test_every_public_function_of_a_run_has_the_option() -> None:
    lacking = []
    for path in sorted(Path(analysis.__file__).parent.glob("*.py")):
        module = import_module(f"analysis.{path.stem}")
        for name, function in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            if function.__module__ != module.__name__:
                continue
            parameters = inspect.signature(function).parameters
            makes = inspect.signature(function).return_annotation == "xr.Dataset"
            takes = {"run", "runs", "on", "model", "train"} & set(parameters)
            if makes and takes and "progress" not in parameters:
                lacking.append(f"{module.__name__}.{name}")
    assert set(lacking) <= WITHOUT
