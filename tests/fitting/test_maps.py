"""Maps apply to arrays and tensors alike, and come back from disk as they were."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.numpy import load_file, save_file

import actstore
from actstore.errors import FitError
from actstore.fitting import fit, load_maps
from tests.grams.gram_fakes import MemoryRun, run_of, stream


@pytest.mark.parametrize("intercept", [False, True])
def test_a_map_is_x_a_plus_b(intercept: bool) -> None:
    run = run_of()
    found = fit(run, intercept=intercept)[0, 2]
    x = run.arrays["resid"][0]
    expected = x.astype(float) @ found.matrix + (0 if found.bias is None else found.bias)
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-4), ("float16", 2e-1)):
        y = found(x.astype(dtype))
        assert y.dtype == dtype
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=tolerance)
    stacked = found(x.reshape(6, 10, 5))
    np.testing.assert_allclose(stacked.reshape(60, 5), found(x), rtol=1e-5)
    assert found(x[0]).shape == (5,)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_tensors_keep_their_dtype(dtype: str) -> None:
    run = run_of()
    found = fit(run, intercept=True)[0, 2]
    x = torch.from_numpy(run.arrays["resid"][0]).to(getattr(torch, dtype))
    y = found(x)
    assert y.dtype == x.dtype
    expected = found(x.double().numpy())
    np.testing.assert_allclose(y.double().numpy(), expected, rtol=1e-2, atol=1e-2 * expected.max())


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dask_and_xarray_stay_lazy_and_labelled(intercept: bool, dtype: str) -> None:
    run = MemoryRun({"resid": stream(60, 5, 1), "mlp": stream(60, 3, 1, seed=1)})
    found = fit(run, sites=("resid", "mlp"), intercept=intercept)[("resid", 0), ("mlp", 0)]
    x = run.arrays["resid"][0].astype(dtype)
    lazy = found(da.from_array(x, chunks=(7, 2)))
    assert (lazy.shape, lazy.dtype, lazy.chunks[1]) == ((60, 3), dtype, (3,))
    np.testing.assert_allclose(lazy.compute(), found(x), rtol=1e-2 if dtype == "float16" else 1e-12)
    labelled = xr.DataArray(
        da.from_array(np.stack([x, 2 * x]), chunks=(1, 30, 5)),
        {"token": ("sample", np.arange(60)), "feature": np.arange(5), "layer": 4},
        ("copy", "sample", "feature"),
    )
    y = found(labelled.transpose("feature", "copy", "sample"))
    assert y.dims == ("feature", "copy", "sample")
    assert set(y.coords) == {"token"}
    assert isinstance(y.data, da.Array)
    at = y.isel(copy=1).transpose("sample", "feature").values
    np.testing.assert_allclose(at, found(2 * x), rtol=1e-2 if dtype == "float16" else 1e-12)
    named = found(xr.DataArray(x, dims=("row", "column")))
    np.testing.assert_array_equal(named.values, found(x))
    assert named.dims == ("row", "column")


@pytest.mark.parametrize("intercept", [False, True])
def test_a_torch_module_computes_the_map(intercept: bool) -> None:
    run = MemoryRun({"resid": stream(60, 5, 1), "mlp": stream(60, 3, 1, seed=1)})
    found = fit(run, sites=("resid", "mlp"), intercept=intercept)[("resid", 0), ("mlp", 0)]
    x = torch.from_numpy(run.arrays["resid"][0])
    module = found.to_torch(dtype=torch.float64)
    assert (module.in_features, module.out_features) == (5, 3)
    torch.testing.assert_close(module(x.double()), found(x.double()), rtol=1e-12, atol=1e-12)
    module(x.double()).sum().backward()
    assert module.weight.grad is not None
    assert found.to_torch().weight.dtype == torch.float32
    assert (found.to_torch().bias is None) == (not intercept)


@pytest.mark.parametrize("intercepts", [(False, False), (True, False), (False, True), (True, True)])
def test_maps_follow_one_another(intercepts: tuple[bool, bool]) -> None:
    run = run_of(layers=4)
    first = fit(run, intercept=intercepts[0])[0, 1]
    second = fit(run, intercept=intercepts[1])[1, 3]
    both = first @ second
    x = run.arrays["resid"][0].astype(np.float64)
    np.testing.assert_allclose(both(x), second(first(x)), rtol=1e-11, atol=1e-9)
    assert (both.source, both.target, both.method) == (0, 3, "composed")
    assert (both.bias is None) == (intercepts == (False, False))
    with pytest.raises(FitError, match=r"map 0 → 1 of 5 features cannot follow 1 → 3"):
        second.then(first)
    with pytest.raises(TypeError):
        first @ 3


def test_what_a_map_cannot_take_is_said() -> None:
    found = fit(run_of())[0, 2]
    with pytest.raises(FitError, match=r"map 0 → 2 takes 5 features, .* shape \(3, 4\)"):
        found(np.zeros((3, 4)))
    with pytest.raises(FitError, match="not to ndarray of int64"):
        found(np.zeros((3, 5), int))
    with pytest.raises(FitError, match="not to list"):
        found([1.0])
    with pytest.raises(FitError, match=r"not to one of torch\.int64"):
        found(torch.zeros(3, 5, dtype=torch.int64))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_saved_equals_loaded(tmp_path: Path, dtype: str) -> None:
    run = MemoryRun({"resid": stream(50, 5, 2), "attn": stream(50, 3, 2, seed=1)})
    maps = fit(run, sites=("resid", "attn"), intercept=True, ridge=0.5)
    path = tmp_path / "maps.safetensors"
    maps.save(path, dtype=dtype)
    found = actstore.load_maps(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert list(found) == list(maps)
    assert found.provenance == maps.provenance
    assert repr(found) == repr(maps)
    for pair in maps:
        ours, its = maps[pair], found[pair]
        assert its.matrix.dtype == dtype
        np.testing.assert_array_equal(its.matrix, ours.matrix.astype(dtype))
        np.testing.assert_array_equal(its.bias, ours.bias.astype(dtype))
        assert (its.rank, its.condition, its.method) == (ours.rank, ours.condition, ours.method)
    np.testing.assert_allclose(found.r2(run), maps.r2(run), rtol=1e-10 if "64" in dtype else 1e-4)
    tensors = load_file(path)
    np.testing.assert_array_equal(
        tensors["resid.0/attn.1/matrix"], maps[("resid", 0), ("attn", 1)].matrix.astype(dtype)
    )
    found.save(tmp_path / "again.safetensors", dtype=dtype)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_what_is_not_a_file_of_maps_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(FitError, match="there is no such file"):
        load_maps(tmp_path / "none")
    (tmp_path / "text").write_text("hello, this is text and no tensors")
    with pytest.raises(FitError, match="truncated or not a safetensors file"):
        load_maps(tmp_path / "text")
    save_file({"a": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(FitError, match="but not maps"):
        load_maps(tmp_path / "other")
    maps = fit(run_of())
    with pytest.raises(FitError, match="dtype='float16' is not kept"):
        maps.save(tmp_path / "a", dtype="float16")
    with pytest.raises(FitError, match="cannot be written"):
        maps.save(tmp_path / "nowhere" / "a")


@pytest.mark.fault
def test_a_truncated_or_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    fit(run_of(width=20)).save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(FitError, match="truncated"):
        load_maps(path)
    changed = bytearray(data)
    changed[-100] ^= 1
    path.write_bytes(changed)
    maps = load_maps(path)
    assert maps[0, 1].rank == 20
    with pytest.raises(FitError, match=r"resid\.1/resid\.2/matrix .* has changed on disk"):
        maps[1, 2]
