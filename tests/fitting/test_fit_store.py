"""From a store on disk to maps and r²: every dtype, selections, splits, and damage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import r2_score

import actstore
from actstore.errors import CorruptionError
from actstore.store import create_run
from tests.grams.gram_fakes import stream, whole


@dataclass(frozen=True)
class Site:
    dim: str
    size: int
    width: int
    module: str = "h.*"


def stored(
    folder: Path, dtype: str = "float32", n: int = 90, shards: range | None = None, seed: int = 0
) -> actstore.Run:
    """A run of three stream layers and two blocks' mlp, two samples a document."""
    layers = stream(n, 6, 3, seed=seed)
    mlp = stream(n, 4, 2, seed=seed + 1)
    builder = create_run(folder / "s.zarr", "tiny", f"text{seed}")
    coords = {
        "document": np.arange(n) // 2,
        "position": np.zeros(n, np.int32),
        "token_id": np.zeros(n, np.int32),
        "sequence": np.arange(n),
    }
    builder.append(coords, [np.zeros(1, np.int32)] * n, np.arange(n) // 2)
    writer = builder.finish(
        key={"model": {"fingerprint": "abc"}, "seed": seed},
        info={},
        sites={"resid": Site("layer", 3, 6), "mlp": Site("block", 2, 4)},
        wanted={"resid": [0, 1, 2], "mlp": [0, 1]},
        dtype=dtype,
        shard_rows=20,
    )
    with writer:
        for shard in writer.pending() if shards is None else shards:
            part = slice(20 * shard, min(20 * shard + 20, n))
            arrays = {
                "resid": np.stack([layers[k][part] for k in range(3)]),
                "mlp": np.stack([mlp[k][part] for k in range(2)]),
            }
            writer.write(shard, arrays)
    return writer.run


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_from_zarr_to_r2(tmp_path: Path, dtype: str) -> None:
    run = stored(tmp_path, dtype)
    train, test = run.split(0.3, by="document")
    assert train.n_samples + test.n_samples == 90
    maps = actstore.fit(train)
    found = maps.r2(test)
    for i, j in maps:
        x, y = (train.resid.sel(layer=k).values.astype(float) for k in (i, j))
        expected = np.linalg.lstsq(x, y, rcond=None)[0]
        np.testing.assert_allclose(maps[i, j].matrix, expected, rtol=1e-9, atol=1e-11)
        x, y = (test.resid.sel(layer=k).values.astype(float) for k in (i, j))
        assert float(found.sel(source=i, target=j)) == pytest.approx(r2_score(y, x @ expected))
    assert maps.provenance["model_fingerprint"] == "abc"
    assert maps.provenance["runs"] == [
        {"model": "tiny", "corpus": "text0", "key": train.key(), "n": train.n_samples, "sign": 1}
    ]


def test_sites_and_selections(tmp_path: Path) -> None:
    run = stored(tmp_path)
    maps = actstore.fit(run, sites=("mlp", "resid"), pairs=[(("mlp", 1), ("resid", 2))])
    x = run["mlp"].sel(block=1).values.astype(float)
    y = run.resid.sel(layer=2).values.astype(float)
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(maps[("mlp", 1), ("resid", 2)].matrix, expected, rtol=1e-9)
    score = float(maps.r2(run).sel(source="mlp.1", target="resid.2"))
    assert score == pytest.approx(r2_score(y, x @ expected), rel=1e-9)
    few = run.isel(sample=[3, 4, 5, 41, 70])
    z = few.resid.sel(layer=1).values.astype(float)
    np.testing.assert_allclose(actstore.gram(few).cross(1, 1), z.T @ z, rtol=1e-12)
    assert actstore.fit(few)[0, 1].rank == 5


def test_a_gram_is_kept_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = actstore.gram(stored(tmp_path))
    again = actstore.open(tmp_path / "s.zarr")["tiny", "text0"]
    with monkeypatch.context() as patch:
        patch.setattr(actstore.Run, "read", lambda *_, **__: pytest.fail("rows were read"))
        np.testing.assert_array_equal(whole(actstore.gram(again)), whole(first))
    assert again.verify() == []


@pytest.mark.fault
def test_a_changed_chunk_is_noticed_while_the_gram_is_computed(tmp_path: Path) -> None:
    run = stored(tmp_path)
    chunk = tmp_path / "s.zarr" / "tiny" / "text0" / "resid" / "c.1.2.0"
    data = bytearray(chunk.read_bytes())
    data[99] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"resid layer 1, shard 2 \(samples 40…59\)"):
        actstore.gram(run)


def test_half_a_run_has_a_gram_of_its_own(tmp_path: Path) -> None:
    half = stored(tmp_path, shards=range(2))
    assert half.n_samples == 40
    found = actstore.gram(half)
    z = half.resid.sel(layer=0).values.astype(float)
    np.testing.assert_allclose(found.cross(0, 0), z.T @ z, rtol=1e-12)


def test_two_corpora_add_up(tmp_path: Path) -> None:
    one, two = stored(tmp_path), stored(tmp_path, seed=5)
    both = actstore.gram(one) + actstore.gram(two)
    z = np.concatenate([run.resid.sel(layer=2).values for run in (one, two)]).astype(float)
    np.testing.assert_allclose(both.cross(2, 2), z.T @ z, rtol=1e-11)
    assert actstore.fit(both).provenance["n"] == 180
