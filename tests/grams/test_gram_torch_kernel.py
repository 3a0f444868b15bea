"""What torch computes on a device is what numpy computes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from actstore.errors import GramError, NonFiniteError
from actstore.fitting import fit
from actstore.grams import compute_gram, gram, make_parts, make_plan, plan_gram
from actstore.grams.columns import select_columns
from actstore.grams.weights import make_weights
from tests.grams.gram_fakes import joined, run_of, whole

TOLERANCE = {"float64": 1e-13, "sketch": 1e-6, "float32": 1e-6}


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference beside the columns' size."""
    scale = np.sqrt(np.diag(expected))
    return float((np.abs(found - expected) / np.outer(scale, scale)).max())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 60),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 30),
    st.sampled_from(sorted(TOLERANCE)),
    st.sampled_from(["float32", "float16"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_on_the_cpu_it_is_numpys(
    n: int,
    width: int,
    layers: int,
    shard: int,
    precision: str,
    dtype: str,
    weighted: bool,
    divided: bool,
    data: st.DataObject,
) -> None:
    run = run_of(n, width, layers, shard_rows=shard, dtype=dtype)
    parts = make_parts(run, np.arange(n) % 2) if divided else None
    weights = make_weights(run, np.random.default_rng(n).uniform(0.1, 2, n)) if weighted else None
    plan = make_plan(
        run,
        select_columns(run, None, None),
        dtype=precision,
        block_rows=data.draw(st.integers(1, 40)),
        workers=data.draw(st.integers(1, 2)),
        parts=2 if divided else 0,
    )
    ours, its = (
        compute_gram(run, plan, parts, weights=weights, device=device) for device in ("cpu", None)
    )
    z = joined(run)
    times = np.ones(n) if weights is None else weights.values
    assert error(whole(ours), z.T @ (times[:, None] * z)) < TOLERANCE[precision]
    for a, b in zip([ours, *ours.parts], [its, *its.parts], strict=True):
        assert error(whole(a), whole(b)) < TOLERANCE[precision]
        for key in a.layers:
            np.testing.assert_allclose(a.mean(key), b.mean(key), rtol=1e-6, atol=1e-6)
    assert ours.provenance["precision"] == its.provenance["precision"] == precision


@pytest.mark.parametrize("precision", sorted(TOLERANCE))
def test_in_passes_and_to_maps(precision: str) -> None:
    run = run_of(700, 100, 9, store=MemoryStore())
    found = gram(run, precision=precision, memory="5MB", device="cpu")
    assert not isinstance(found.blocks, dict)
    expected = gram(run_of(700, 100, 9), precision=precision)
    assert error(whole(found), whole(expected)) < TOLERANCE[precision]
    ours, its = (fit(g, pairs="to_last").r2(g) for g in (found, expected))
    np.testing.assert_allclose(ours, its, atol=1e-6)
    assert plan_gram(run, device="cpu").workers == 1


def test_heavy_rows_are_set_apart_on_a_device_too() -> None:
    run = run_of(4000, 12, 2)
    rows = np.array([5, 900, 3999])
    run.arrays["resid"][1][rows] *= 1e6
    for device in (None, "cpu"):
        found = gram(run, precision="sketch", device=device)
        assert error(whole(found), whole(gram(run))) < 1e-7


def test_what_a_device_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(n=50)
    for device in ("cuda:99", "nonsense", "meta"):
        with pytest.raises(GramError, match=f"device='{device}' cannot add up float64 .* cpu"):
            gram(run, device=device)
    run.arrays["resid"][1][7, 0] = np.nan
    with pytest.raises(NonFiniteError, match=r"resid layer 1 has NaN or infinity in rows 7;"):
        gram(run, device="cpu")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    with pytest.raises(GramError, match="set_float32_matmul_precision"):
        gram(run_of(), device="cpu", precision="sketch")
    assert gram(run_of(), device="cpu", precision="float64").n == 60


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", sorted(TOLERANCE))
def test_on_a_gpu_it_is_numpys(precision: str) -> None:
    run = run_of(5000, 64, 4, shard_rows=700)
    found, expected = gram(run, precision=precision, device="cuda"), gram(run, precision=precision)
    assert error(whole(found), whole(expected)) < TOLERANCE[precision]


def test_torch_is_not_imported_unless_a_device_is_asked_for() -> None:
    code = (
        "import sys; from tests.grams.gram_fakes import run_of; from actstore.grams import gram; "
        "gram(run_of(), precision='sketch'); assert 'torch' not in sys.modules; "
        "gram(run_of(), device='cpu'); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
