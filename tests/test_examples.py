"""Every example runs to its end on a little of the real text, and leaves its report."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from analysis import results
from examples import assets

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("smollm2", "wikipedia", "news"):
        if not assets.available(name):
            pytest.skip(f"{name} was not fetched: python -m examples.assets {name}")
    return tmp_path_factory.mktemp("examples")


def run(name: str, output: Path, monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    words = [name, "--output", str(output), *map(str, options)]
    monkeypatch.setattr(sys, "argv", words)
    import_module(f"examples.{name}").main()


def finite(folder: Path, kind: str, variable: str) -> np.ndarray:
    """The values of the one result of that kind, checked to be numbers."""
    (found,) = [d for d in map(results.load, folder.glob("*.zarr")) if d.attrs["kind"] == kind]
    values: np.ndarray = found[variable].values
    assert np.isfinite(values).any()
    return values


def test_the_demo_and_what_lives_on_its_store(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = output / "demo"
    run("demo", demo, monkeypatch, "--limit", 90)
    assert "<svg" in (demo / "report.html").read_text("utf-8")
    store = demo / "demo.zarr"

    monkeypatch.setattr(
        sys, "argv",
        ["similarity", str(store), "smollm2-135m/wiki", "--layers", "0", "15", "30",
         "--limit", "90", "--measures", "cka", "--output", str(output / "similarity")],
    )  # fmt: skip
    import_module("examples.similarity").main()
    cka = finite(output / "similarity", "similarity", "cka")
    np.testing.assert_allclose(np.diagonal(cka), 1)


def test_the_autoencoder(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("sae", output / "sae", monkeypatch, "--limit", 60, "--epochs", 2)
    assert list((output / "sae").glob("*.png")) + list((output / "sae").glob("*.svg"))


def test_the_future_lens(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("--limit", 60, "--layers", 20, "--offsets", 1)
    run("future_lens", output / "future", monkeypatch, *small)
    share = finite(output / "future" / "results", "future_lens", "precision")
    assert share.shape == (1, 2, 3)
    assert ((share >= 0) & (share <= 1)).all()
    assert "<svg" in (output / "future" / "report.html").read_text("utf-8")


def test_pruning(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--limit", 2, "--counts", 0, 1, "--variants", "remove", "replace")
    run("pruning", output / "pruning", monkeypatch, *options)
    perplexity = finite(output / "pruning" / "results", "pruning", "perplexity")
    assert (perplexity > 1).all()


def test_pretraining(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not assets.available("stories"):
        pytest.skip("stories was not fetched: python -m examples.assets stories")
    sizes = ("--layers", 2, "--width", 32, "--vocabulary", 300, "--steps", 6, "--seeds", 2)
    run("pretraining", output / "pretraining", monkeypatch, "--limit", 30, "--batch", 4, *sizes)
    loss = finite(output / "pretraining" / "results", "pretraining", "validation_loss")
    assert (loss > 0).all()
