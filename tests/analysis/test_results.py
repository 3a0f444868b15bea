"""What is saved comes back, and what was damaged does not."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from actstore.errors import AnalysisError, CorruptionError
from analysis import results


def example() -> xr.Dataset:
    tokens = np.array([["a", "<|endoftext|>"], ["日本", "\n"]], object)
    dataset = xr.Dataset(
        {
            "token": (("shortcut", "rank"), tokens),
            "p": (("shortcut", "rank"), np.array([[0.5, np.nan], [0.25, 0.0]], np.float32)),
            "hit": ("shortcut", np.array([True, False])),
            "settles": ("shortcut", np.array([3, -1])),
        },
        coords={"shortcut": ["mat", "id"], "depth": ("shortcut", [0.0, 1.0])},
    )
    return results.label(dataset, "peek", "a title", results.provenance("f", seed=1))


def test_saved_equals_loaded(tmp_path: Path) -> None:
    before = example()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = results.save(before, tmp_path / "deep" / "peek.zarr")
        after = results.load(path)
    xr.testing.assert_identical(before, after)
    assert {n: v.dtype.kind for n, v in after.data_vars.items()} == {
        "token": "O",
        "p": "f",
        "hit": "b",
        "settles": "i",
    }
    assert list(path.parent.iterdir()) == [path]
    # Plain xarray reads it as well.
    with xr.open_zarr(path, consolidated=False, chunks=None) as plain:
        assert plain.token.values.tolist() == before.token.values.tolist()


def test_saving_again_replaces_and_changes_no_byte(tmp_path: Path) -> None:
    path = results.save(example(), tmp_path / "r.zarr")
    first = {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    results.save(example(), path)
    again = {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert first == again


def test_a_folder_that_is_no_result_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(AnalysisError, match="not a saved result"):
        results.save(example(), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(AnalysisError, match="no saved result"):
        results.load(tmp_path / "nothing.zarr")


@pytest.mark.fault
@pytest.mark.parametrize("damage", ["missing", "flipped", "metadata"])
def test_damage_is_an_error(tmp_path: Path, damage: str) -> None:
    path = results.save(example(), tmp_path / "r.zarr")
    chunk = path / "p" / "c" / "0" / "0"
    if damage == "missing":
        chunk.unlink()
    elif damage == "flipped":
        raw = bytearray(chunk.read_bytes())
        raw[len(raw) // 2] ^= 1
        chunk.write_bytes(raw)
    else:
        shutil.rmtree(path / "token")
    with pytest.raises(CorruptionError, match="compute it anew"):
        results.load(path)


def test_objects_are_refused_rather_than_pickled(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="'x' holds objects"):
        results.save(xr.Dataset({"x": ("a", np.array([{}, 1], object))}), tmp_path / "r.zarr")
    assert list(tmp_path.iterdir()) == []


def test_provenance_is_plain_json_without_a_time() -> None:
    run = SimpleNamespace(model="m", corpus="c", n_samples=3, key=lambda: "abc")
    model = SimpleNamespace(describe=lambda: {"name": "m", "path": Path("x")})
    maps = SimpleNamespace(provenance={"ridge": np.float64(0)})
    record = results.provenance(
        "analysis.prediction.curves",
        runs={"evaluation": run},  # type: ignore[dict-item]
        model=model,  # type: ignore[arg-type]
        maps=maps,
        ks=(1, np.int64(5)),
    )
    assert record == json.loads(json.dumps(record))
    assert record["parameters"] == {"ks": [1, 5]}
    assert record["runs"] == {
        "evaluation": {"model": "m", "corpus": "c", "samples": 3, "key": "abc"}
    }
    assert record["maps"] == {"ridge": 0.0}
    assert record["versions"]["numpy"] == np.__version__
    dataset = results.label(xr.Dataset(), "prediction", "t", record)
    assert results.read_provenance(dataset) == record
    assert results.read_provenance(xr.Dataset()) == {}
