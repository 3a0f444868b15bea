"""Schedules by definition and brute force; their runs against loops over sequences and blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from rerun_models import BLOCKS, layers_of, matrix, plain_block, plain_logits, plain_scores

from actstore.errors import AnalysisError
from analysis import alternation, r2, results
from analysis.alternation import Schedule


def all_paths(n_blocks: int) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Every way from layer 0 to the last: (real blocks, jumps)."""

    def onward(layer: int) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        if layer == n_blocks:
            return [(0, ())]
        found = [(real + 1, jumps) for real, jumps in onward(layer + 1)]
        for target in range(layer + 1, n_blocks + 1):
            found += [(real, ((layer, target), *jumps)) for real, jumps in onward(target)]
        return found

    return onward(0)


def table(values: np.ndarray) -> xr.DataArray:
    n = len(values)
    return xr.DataArray(values, {"source": range(n), "target": range(n)}, ("source", "target"))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_the_dynamic_programme_finds_the_best_of_all_schedules(seed: int, n_blocks: int) -> None:
    rng = np.random.default_rng(seed)
    r2_table = table(rng.uniform(-0.3, 1, (n_blocks + 1, n_blocks + 1)))
    found = alternation.best_by_r2(r2_table, n_blocks, list(range(n_blocks + 1)))
    for real, schedule in enumerate(found):
        best = max(
            float(np.prod([max(float(r2_table[jump]), 0) for jump in jumps]))
            for count, jumps in all_paths(n_blocks)
            if count == real
        )
        assert schedule.real == real
        assert schedule.product(r2_table) == pytest.approx(best)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 24), st.integers(0, 100))
def test_schedules_cover_every_block_once(n_blocks: int, seed: int) -> None:
    made = alternation.round_robins(n_blocks)
    made += alternation.random_schedules(n_blocks, range(n_blocks + 1), draws=2, seed=seed)
    made += alternation.exits(n_blocks, range(n_blocks))
    for schedule in made:
        covered = [block for source, target in schedule.jumps for block in range(source, target)]
        assert len(set(covered)) == len(covered) == n_blocks - schedule.real
    assert (
        made == alternation.round_robins(n_blocks) + made[len(alternation.round_robins(n_blocks)) :]
    )


def test_round_robins_in_both_orders() -> None:
    robin = alternation.round_robin(6, 2, 1)
    assert robin.jumps == ((2, 3), (5, 6))
    assert robin.text == "2 real, 2→3, 2 real, 5→6"
    assert alternation.round_robin(6, 2, 1, first="jump").jumps == ((0, 1), (3, 4))
    assert {(s.real, s.family) for s in alternation.round_robins(4, [2, 4])} == {
        (real, f"round robin, {first} first") for real in (1, 2, 3) for first in ("real", "jump")
    }
    with pytest.raises(AnalysisError, match="must divide the 6 blocks"):
        alternation.round_robin(6, 2, 2)
    with pytest.raises(AnalysisError, match="jump 3 → 2"):
        Schedule(6, ((0, 3), (3, 2)))


def test_random_schedules_are_uniform_over_the_blocks() -> None:
    drawn = alternation.random_schedules(5, [2], draws=2000, seed=1)
    kept = np.zeros(5)
    for schedule in drawn:
        assert schedule.real == 2
        skipped = {b for source, target in schedule.jumps for b in range(source, target)}
        kept += [block not in skipped for block in range(5)]
    np.testing.assert_allclose(kept / 2000, 0.4, atol=0.05)


@pytest.mark.parametrize(
    ("family", "spared"),
    [("gpt2", 0), ("gpt2", 2), ("opt", 0), ("llama", 0), ("llama", 1), ("bert", 0)],
)
def test_runs_equal_a_loop_over_sequences_and_blocks(family: str, spared: int, case: Any) -> None:
    at = case(family)
    run = at.held_out
    r2_table = r2.heat_maps(at.maps, at.run, progress=False).r2.sel(shortcut="mat")
    schedules = alternation.paper_schedules(r2_table, BLOCKS, counts=[0, 1, 2], draws=2)
    schedules.append(Schedule(BLOCKS, ()))
    got = alternation.curves(
        run,
        at.maps,
        at.model,
        schedules,
        r2=r2_table,
        ks=(1, 3),
        spare_first=spared,
        batch_tokens=50,
        progress=False,
    )
    ranks = np.empty((len(schedules), run.n_samples))
    surprisals = np.empty(ranks.shape)
    for i in range(run.n_samples):
        layers, position = layers_of(at, at.ids(run, i)), at.position(run, i)
        original = plain_logits(at, layers[-1][position])
        for s, schedule in enumerate(schedules):
            x, layer = layers[0], 0
            jumps = dict(schedule.jumps)
            while layer < BLOCKS:
                if layer in jumps:
                    x = x @ matrix(at.maps[layer, jumps[layer]])
                    layer = jumps[layer]
                    x = torch.cat([layers[layer][:spared], x[spared:]])
                else:
                    x, layer = plain_block(at, layer, x), layer + 1
            ranks[s, i], surprisals[s, i] = plain_scores(original, plain_logits(at, x[position]))
    for k in (1, 3):
        np.testing.assert_allclose(got.precision.sel(k=k), (ranks < k).mean(axis=1))
    np.testing.assert_allclose(got.surprisal, surprisals.mean(axis=1), atol=1e-3)
    assert float(got.precision[-1].min()) == 1
    for s, schedule in enumerate(schedules):
        assert int(got.real_blocks[s]) == schedule.real
        assert float(got["product"][s]) == pytest.approx(schedule.product(r2_table))
        partner = [n for n, t in enumerate(schedules) if t.jumps == ((schedule.real, BLOCKS),)]
        if partner:
            expected = ((ranks[s] < 1).astype(int) - (ranks[partner[-1]] < 1)).mean()
            assert float(got.precision_over_exit[s, 0]) == pytest.approx(expected)
        else:
            assert np.isnan(got.precision_over_exit[s, 0])


def test_results_are_saved_and_refusals_are_named(case: Any, tmp_path: Any) -> None:
    at = case("llama")
    schedules = alternation.exits(BLOCKS, [1, 2])
    got = alternation.curves(at.held_out, at.maps, at.model, schedules, samples=6, seed=3)
    assert got.attrs["samples"] == 6
    assert results.load(results.save(got, tmp_path / "r.zarr")).identical(got)
    with pytest.raises(AnalysisError, match="schedule for 3 blocks given, but llama has 4"):
        alternation.curves(at.held_out, at.maps, at.model, [Schedule(3)])
    few = {pair: at.maps[pair] for pair in itertools.islice(at.maps, 2)}
    with pytest.raises(AnalysisError, match="no map 2 → 4"):
        alternation.curves(at.held_out, few, at.model, schedules[1:])  # type: ignore[arg-type]
    with pytest.raises(AnalysisError, match="no r² of 0 → 3"):
        alternation.best_by_r2(table(np.zeros((3, 3))), 3, [1])
