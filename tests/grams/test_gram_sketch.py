"""Float32 products of whitened rows: as exact as promised, whatever the sketch has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore

import actstore
from actstore.errors import GramError, NonFiniteError
from actstore.fitting import fit
from actstore.grams import Gram, compute_gram, gram, make_parts, make_plan, plan_gram
from actstore.grams.columns import select_columns
from actstore.grams.whitening import GUARD, _choose, draw, spectra
from tests.fitting.spectra import CONDITIONS, adversarial, errors_of
from tests.fitting.test_fit_store import stored
from tests.grams.gram_fakes import MemoryRun, joined, run_of, stream, whole


def said(found: Gram) -> dict[str, Any]:
    entry: dict[str, Any] = found.provenance["runs"][0]["sketch"]
    return entry


def error(found: Gram, expected: np.ndarray, *, centred: bool = False) -> float:
    """Largest error beside the columns' spread."""
    scale = np.sqrt(np.diag(expected))
    scale = np.where(scale > 0, scale, 1)
    return float((np.abs(whole(found, centred=centred) - expected) / np.outer(scale, scale)).max())


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 120),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 50),
    st.integers(1, 60),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["float32", "float16"]),
    st.integers(0, 5),
)
def test_however_the_work_is_cut_it_is_the_dense_product(
    n: int,
    width: int,
    layers: int,
    shard: int,
    block_rows: int,
    workers: int,
    ranges: int,
    dtype: str,
    seed: int,
) -> None:
    run = run_of(n, width, layers, shard_rows=shard, dtype=dtype, seed=seed)
    columns = select_columns(run, None, None)
    plan = make_plan(
        run, columns, dtype="sketch", workers=workers, block_rows=block_rows, row_ranges=ranges
    )
    found = compute_gram(run, plan, sketch_seed=seed)
    z = joined(run)
    centred = z - z.mean(axis=0)
    assert error(found, z.T @ z) < 2e-6
    assert error(found, centred.T @ centred, centred=True) < 2e-6
    np.testing.assert_allclose(
        np.concatenate([found.mean(k) for k in found.layers]),
        z.mean(axis=0),
        rtol=1e-12,
        atol=1e-12,
    )
    if n <= width:
        assert said(found)["float64"] == [f"resid.{k}" for k in range(layers)]
        assert error(found, z.T @ z) < 1e-12


def rare(
    n: int = 12000, width: int = 24, size: float = 1e4, count: int = 3, rows: int = 3
) -> tuple[MemoryRun, np.ndarray]:
    """Layers of a large mean and an outlier column, and in two of them a few rows `size` times
    the rest."""
    layers = stream(n, width, count, mean=10.0)
    rng = np.random.default_rng(7)
    chosen = rng.choice(n, rows, replace=False)
    for k, values in layers.items():
        direction = rng.standard_normal(width) * np.where(np.arange(width) < 2, 1, 0.03)
        if k in (0, 2):
            times = size * rng.uniform(0.5, 2, (rows, 1))
            values[chosen] += (times * direction).astype(np.float32)
    return MemoryRun({"resid": layers}, shard_rows=1000), chosen


def missing(run: MemoryRun, rows: np.ndarray, width: int) -> int:
    """A seed whose sketch has none of these rows."""
    for seed in range(100):
        drawn = np.concatenate([numbers for _, numbers in _choose(run, width, seed, None)])
        if not np.isin(rows, drawn).any():
            return seed
    raise AssertionError("every sketch has seen them")


@pytest.mark.parametrize("size", [3.0, 100.0, 1e4, 1e6])
def test_rare_massive_rows_that_the_sketch_has_missed_are_found_by_the_guard(size: float) -> None:
    run, rows = rare(size=size)
    seed = missing(run, rows, 24)
    found = gram(run, precision="sketch", sketch_seed=seed)
    assert said(found)["again"] == (["resid.0", "resid.2"] if size >= 1e4 else [])
    assert said(found)["condition"] <= GUARD
    assert said(found)["float64"] == []
    assert found.provenance["precision"] == "sketch"
    for train, test in errors_of(run, run, found, found).values():
        assert max(train, test) < 1e-6


@pytest.mark.parametrize("guarded", [True, False])
def test_many_rows_that_the_sketch_has_missed_would_cost_r2(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, rows = rare(4000, rows=200)

    def blind(*arguments: Any) -> list[tuple[object, np.ndarray]]:
        return [(b, numbers[~np.isin(numbers, rows)]) for b, numbers in _choose(*arguments)]

    monkeypatch.setattr("actstore.grams.whitening._choose", blind)
    if not guarded:
        monkeypatch.setattr("actstore.grams.sketching.GUARD", float("inf"))
    found = gram(run, precision="sketch")
    assert said(found)["again"] == (["resid.0", "resid.2"] if guarded else [])
    worst = max(max(pair) for pair in errors_of(run, run, found, found).values())
    assert worst < 1e-6 if guarded else worst > 1e-5


def test_what_a_second_factor_does_not_mend_is_made_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, rows = rare(n=4000, width=12, count=9)
    seed = missing(run, rows, 12)
    monkeypatch.setattr("actstore.grams.sketching.refreshed", lambda basis, *_: basis)
    found = gram(run, precision="sketch", sketch_seed=seed)
    assert said(found)["again"] == said(found)["float64"] == ["resid.0", "resid.2"]
    exact = gram(run)
    assert error(found, whole(exact)) < 1e-6
    bad = found.select([0, 2])
    assert error(bad, whole(exact.select([0, 2]))) < 1e-12
    assert error(found.select([1]), whole(exact.select([1]))) > 1e-12


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("kind", ["duplicate", "constant", "zero", "rare", "few rows"])
def test_layers_that_cannot_be_whitened_are_made_in_float64(kind: str, tiled: bool) -> None:
    layers = stream(50 if kind == "few rows" else 3000, 60, 7)
    x = layers[2]
    if kind == "duplicate":
        x[:, 5] = x[:, 9]
    elif kind == "constant":
        x[:, 5] = 0.3
    elif kind == "zero":
        x[:, 5] = 0
    elif kind == "rare":
        x[:, 5] = 0
        x[77, 5] = 1e4
    run = MemoryRun({"resid": layers}, store=MemoryStore())
    seed = missing(run, np.array([77]), 60) if kind == "rare" else 0
    memory = "3MB" if tiled else None
    found = gram(run, precision="sketch", sketch_seed=seed, memory=memory)
    assert isinstance(found.blocks, dict) != tiled
    every = [f"resid.{k}" for k in range(7)]
    assert said(found)["float64"] == (every if kind == "few rows" else ["resid.2"])
    z = joined(run)
    centred = z - z.mean(axis=0)
    assert error(found, centred.T @ centred, centred=True) < 1e-6
    expected = centred[:, 120:180].T @ centred[:, 120:180]
    assert error(found.select([2]), expected, centred=True) < 1e-12
    if kind in ("constant", "zero"):
        assert found.variance(2)[5] == 0
    if kind == "duplicate":
        assert fit(found)[2, 3].method == "svd"


def test_passes_tile_by_tile_give_the_same_contract(tmp_path: Path) -> None:
    layers = stream(3000, 60, 7, mean=10.0)
    rows = np.array([11, 1200, 2999])
    layers[3][rows] *= 1e5
    run = MemoryRun({"resid": layers}, store=LocalStore(tmp_path), shard_rows=700)
    seed = missing(run, rows, 60)
    plan = plan_gram(run, precision="sketch", memory="3MB")
    assert plan.passes > 1
    assert plan.peak_memory < 3e6
    found = gram(run, precision="sketch", sketch_seed=seed, memory="3MB")
    assert not isinstance(found.blocks, dict)
    assert said(found)["again"] == ["resid.3"]
    assert error(found, whole(gram(run, cache=False))) < 1e-6
    for train, test in errors_of(run, run, found, found).values():
        assert max(train, test) < 1e-6
    read = run.reads
    again = gram(run, precision="sketch", sketch_seed=seed, memory="3MB")
    assert run.reads == read
    assert again.provenance == found.provenance
    assert said(gram(run, precision="sketch", sketch_seed=seed + 1))["seed"] == seed + 1
    assert run.reads > read


def test_parts_keep_the_contract_and_come_apart() -> None:
    run, rows = rare(3000, 12)
    numbers = np.arange(3000) % 4
    numbers[rows] = 2
    parts = make_parts(run, numbers)
    found = gram(run, parts=numbers, precision="sketch", sketch_seed=missing(run, rows, 12))
    exact = gram(run, parts=numbers)
    assert len(found.parts) == len(parts) == 4
    for k in range(4):
        assert said(found.parts[k]) == said(found)
        for ours, its in (
            (found.parts[k], exact.parts[k]),
            (found.without(k), exact.without(k)),
        ):
            maps, expected = fit(ours), fit(its)
            r2 = maps.r2(its, average=None) - expected.r2(its, average=None)
            assert np.nanmax(np.abs(r2)) < 1e-6


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("massive", [False, True])
def test_r2_is_within_the_contract_at_any_condition(condition: float, massive: bool) -> None:
    train, test = adversarial(condition, massive)
    grams = [gram(run, precision="sketch") for run in (train, test)]
    for pair in errors_of(train, test, *grams).values():
        assert max(pair) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_every_stored_dtype(tmp_path: Path, dtype: str) -> None:
    run = stored(tmp_path, dtype)
    found = actstore.gram(run, precision="sketch")
    z = np.concatenate([run.resid.sel(layer=k).values.astype(float) for k in range(3)], axis=1)
    assert error(found, z.T @ z) < 1e-6
    assert said(found)["rows"] == 90


def test_a_sketch_is_drawn_from_all_over_and_whitens() -> None:
    run = run_of(4000, 8, 2, shard_rows=100, mean=1000.0)
    columns = select_columns(run, None, None)
    drawn = np.concatenate([numbers for _, numbers in _choose(run, 8, 3, None)])
    assert len(drawn) == len(set(drawn)) == 1024
    assert np.bincount(drawn // 500).min() > 80
    weights = np.zeros(4000)
    weights[::9] = 2.0
    weighed = np.concatenate([numbers for _, numbers in _choose(run, 8, 3, weights)])
    assert (weighed % 9 == 0).all()
    whitening = draw(run, columns, 3)
    assert not whitening.unfit
    for k in range(2):
        z = (run.arrays["resid"][k] - whitening.shift[k]) @ whitening.bases[k]
        values = np.linalg.eigvalsh(z.T @ z / 4000)
        assert 0.1 < values[0] < values[-1] < 10


def test_a_condition_is_that_of_the_worse_moments() -> None:
    from actstore.grams.kernel import Partial, Tile
    from actstore.grams.whitening import Whitening

    rng = np.random.default_rng(0)
    z = rng.standard_normal((500, 4)) * [1, 1, 1, 0.1] + [3.0, 0, 0, 0]
    partial = Partial({(0, Tile(0, 0, 1)): z.T @ z}, {(0, 0): z.sum(axis=0)})
    whitening = Whitening({0: np.zeros(4)}, {0: np.eye(4)}, set(), 0, 0)
    ((_, condition, values, _),) = spectra(partial, whitening, [0], 500)
    centred = np.linalg.eigvalsh(np.cov(z.T, bias=True))
    np.testing.assert_allclose(values, centred, rtol=1e-10)
    assert np.linalg.eigvalsh(z.T @ z / 500)[-1] / centred[0] == pytest.approx(condition, rel=0.2)


def test_what_is_not_a_number_is_named_and_forward_passes_are_refused() -> None:
    run = run_of(n=50, shard_rows=16)
    run.arrays["resid"][2][[17, 40], 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"resid layer 2 has NaN or infinity in rows 17"):
        gram(run, precision="sketch")
    made = run_of()
    made.sequential = True  # type: ignore[attr-defined]
    with pytest.raises(GramError, match="extract them first, or take precision='float64'"):
        gram(made, precision="sketch")


def test_precisions_add_up_to_the_roughest() -> None:
    kinds = {p: gram(run_of(n=300), precision=p) for p in ("float64", "sketch", "float32")}
    assert (kinds["float64"] + kinds["sketch"]).provenance["precision"] == "sketch"
    assert (kinds["sketch"] + kinds["float32"]).provenance["precision"] == "float32"
    assert kinds["sketch"].eps == kinds["float64"].eps < kinds["float32"].eps
