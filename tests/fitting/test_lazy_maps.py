"""Maps solved when asked for are the maps; what is not there is told with what is."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.storage import LocalStore, MemoryStore

from actstore.errors import SiteError
from actstore.fitting import fit, load_maps
from actstore.fitting.lazy import SolvedMaps
from actstore.fitting.maps import LinearMap, MapSet
from actstore.grams import gram
from tests.grams.gram_fakes import MemoryRun, run_of, stream


def assert_same(ours: LinearMap, its: LinearMap) -> None:
    np.testing.assert_allclose(ours.matrix, its.matrix, rtol=1e-10, atol=1e-12)
    if its.bias is None:
        assert ours.bias is None
    else:
        np.testing.assert_allclose(ours.bias, its.bias, rtol=1e-10, atol=1e-10)
    assert (ours.source, ours.target, ours.rank, ours.method, ours.ridge) == (
        its.source,
        its.target,
        its.rank,
        its.method,
        its.ridge,
    )
    np.testing.assert_allclose(
        [ours.condition, ours.degrees_of_freedom], [its.condition, its.degrees_of_freedom]
    )


OPTIONS: list[dict[str, Any]] = [
    {},
    {"intercept": True, "pairs": "ordered"},
    {"ridge": 3.0},
    {"ridge": [0.1, 100.0], "intercept": True},
    {"rank": 2, "intercept": True},
    {"weights": np.linspace(0, 2, 90)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_solved_when_asked_for_they_are_the_maps(options: dict[str, Any], tmp_path: Path) -> None:
    layers = stream(90, 6, 5)
    layers[2][:, 3] = layers[2][:, 4]
    run = MemoryRun({"resid": layers}, shard_rows=20)
    eager, lazy = (fit(run, lazy=lazy, **options) for lazy in (False, True))
    assert isinstance(lazy._maps, SolvedMaps)
    assert list(lazy) == list(eager)
    assert lazy.provenance == eager.provenance
    assert repr(lazy) == repr(eager)
    for pair in eager:
        assert_same(lazy[pair], eager[pair])
    np.testing.assert_allclose(lazy.r2(run), eager.r2(run), rtol=1e-10)
    lazy.save(tmp_path / "maps")
    back = load_maps(tmp_path / "maps")
    for pair in eager:
        assert_same(back[pair], eager[pair])


def test_a_gram_on_disk_is_read_for_the_pair_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gram(run_of(700, 100, 9, store=MemoryStore()), memory="5MB")
    assert not isinstance(found.blocks, dict)
    found.run = None
    read: list[tuple[int, int]] = []
    blocks = type(found.blocks)
    inner = blocks.__getitem__

    def counted(self: Any, pair: tuple[int, int]) -> np.ndarray:
        read.append(pair)
        return inner(self, pair)

    monkeypatch.setattr(blocks, "__getitem__", counted)
    maps = fit(found, lazy=True)
    assert read == []
    maps[2, 7]
    assert set(read) == {(2, 2), (2, 7)}
    read.clear()
    maps[2, 8]
    assert set(read) == {(2, 8)}


def test_maps_that_would_fill_the_memory_are_solved_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(n=60, width=5, layers=4)
    size = 6 * 25 * 8
    for memory, lazy in ((4 * size, False), (4 * size - 1, True), (None, False)):
        monkeypatch.setattr("actstore.fitting.least_squares.physical_memory", lambda m=memory: m)
        assert isinstance(fit(run)._maps, SolvedMaps) == lazy
    assert not isinstance(fit(run, lazy=False)._maps, SolvedMaps)


def test_what_a_gram_alone_does_not_settle_is_told_when_it_is_asked_for() -> None:
    layers = stream(90, 6, 3)
    layers[0][:, 3] = layers[0][:, 4]
    alone = gram(MemoryRun({"resid": layers}))
    alone.run = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = fit(alone, lazy=True)
        maps[1, 2]
    with pytest.warns(UserWarning, match="source layers 0 are too ill-conditioned"):
        assert maps[0, 1].method == "eigh"


def several() -> MapSet:
    run = MemoryRun({"resid": stream(50, 5, 3), "mlp": stream(50, 3, 2, seed=1)})
    return fit(run, sites=("resid", "mlp"))


def test_negative_layers_count_from_the_last(tmp_path: Path) -> None:
    run = run_of(n=60, layers=6, store=LocalStore(tmp_path))
    maps = fit(run)
    assert maps[-6, -1] is maps[0, 5]
    assert (-5, 3) in maps
    assert (-7, 3) not in maps
    assert list(fit(run, pairs=[(-3, -1), (0, -2)])) == [(0, 4), (3, 5)]
    np.testing.assert_array_equal(gram(run).cross(-1, -2), gram(run).cross(5, 4))
    few = gram(run).select([1, -1])
    assert few.layers == [1, 5]
    np.testing.assert_array_equal(few.mean(-2), gram(run).mean(1))
    both = several()
    assert both[("resid", -1), ("mlp", -1)] is both[("resid", 2), ("mlp", 1)]
    with pytest.raises(SiteError, match="layer -7 asked for, but m has layers 0…5"):
        maps[-7, 3]


def test_a_pair_that_was_not_fitted_is_told_with_those_that_were(tmp_path: Path) -> None:
    maps = fit(run_of(layers=6))
    with pytest.raises(KeyError, match="no map 4 → 1 was fitted: there are maps from 4 to 5"):
        maps[4, 1]
    with pytest.raises(KeyError, match="no map 5 → 1 was fitted: there are maps from 0…4"):
        maps[-1, 1]
    with pytest.raises(KeyError, match="no map 2 → 0 was fitted: there are maps from 2 to 3…5"):
        maps[2, 0]
    with pytest.raises(KeyError, match=r"there are maps from \('mlp', 0\) to \('mlp', 1\)"):
        several()[("mlp", 0), ("resid", 2)]
    maps.save(tmp_path / "maps")
    with pytest.raises(KeyError, match="there are maps from 4 to 5"):
        load_maps(tmp_path / "maps")[4, 1]
