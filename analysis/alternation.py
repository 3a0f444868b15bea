"""Blocks that are run and jumps over others, in turn, at all positions.

"Jump to Conclusions" (arXiv 2303.09435) §6: instead of one jump to the last layer, run some
blocks and jump over others with the fitted maps. The jumps apply to every position, so that
attention in later blocks sees states that belong together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from tqdm import tqdm

from actstore.errors import AnalysisError
from analysis import results, stats
from analysis.comparing import add, checked_ks, describe_samples, groups_of
from analysis.decoding import require_model
from analysis.rerunning import batches, chosen_samples, scores
from analysis.schedules import (
    Schedule,
    best_by_r2,
    exits,
    random_schedules,
    round_robin,
    round_robins,
)
from analysis.splicing import Change, Splice, Splicer, check_spared, spared_note

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel
    from actstore.store import Run

__all__ = [
    "Schedule",
    "best_by_r2",
    "curves",
    "exits",
    "paper_schedules",
    "random_schedules",
    "round_robin",
    "round_robins",
]

LEVEL = 0.95


def paper_schedules(
    r2: xr.DataArray,
    n_blocks: int,
    *,
    counts: Sequence[int] | None = None,
    periods: Sequence[int] | None = None,
    draws: int = 3,
    seed: int = 0,
) -> list[Schedule]:
    """Everything compared in §6: round robins in both orders, r² informed, random, one jump.

    Parameters
    ----------
    r2 : DataArray (source, target)
        As for `best_by_r2`.
    n_blocks : int
    counts : sequence of int, optional
        Numbers of real blocks for the last three; default: 1 … L−1.
    periods : sequence of int, optional
        Of the round robins; default: all that divide the blocks.
    draws, seed : int
        Random schedules for each count.
    """
    chosen = list(range(1, n_blocks)) if counts is None else list(counts)
    return [
        *round_robins(n_blocks, periods),
        *best_by_r2(r2, n_blocks, chosen),
        *random_schedules(n_blocks, chosen, draws=draws, seed=seed),
        *exits(n_blocks, chosen),
    ]


def curves(
    run: Run,
    maps: MapSet,
    model: LanguageModel,
    schedules: Sequence[Schedule],
    *,
    r2: xr.DataArray | None = None,
    ks: Sequence[int] = (1, 5, 10),
    samples: int | None = None,
    seed: int = 0,
    cluster: str | None = "document",
    spare_first: int = 0,
    batch_tokens: int = 4096,
    progress: bool | None = None,
) -> xr.Dataset:
    """Precision@k and surprisal of schedules, against the blocks they run.

    The sequences are run anew, up to the last sampled position where the model is causal; a
    jump i → j takes the place of blocks i … j−1 at all positions. What comes out is compared
    with the unchanged run, as in `analysis.prediction.curves`.

    Parameters
    ----------
    run : Run
        Evaluation samples.
    maps : MapSet
        Maps (i, j) of all jumps, fitted on other samples.
    model : LanguageModel
        The one that the run was extracted from; causal or masked.
    schedules : sequence of Schedule
    r2 : DataArray (source, target), optional
        Adds ``product``, of the jumps' r².
    ks, cluster
        As for `analysis.prediction.curves`.
    samples : int, optional
        Use only so many samples, drawn by `seed`.
    spare_first : int
        Leading positions that run as they are, of causal models. The paper spares none. The first
        token's state is an attention sink in many models, many times larger than any
        other, on which maps of other positions do harm that all later tokens see.
    batch_tokens : int
        Tokens run together; the stream of all layers is held at all of them.
    progress : bool, optional

    Returns
    -------
    xarray.Dataset
        ``precision`` (schedule, k) and ``surprisal`` (schedule) with ``_low`` and ``_high``;
        ``precision_over_exit`` (schedule, k), the paired difference to one jump to the end with
        as many real blocks, NaN where that is not among the schedules; ``nonfinite`` (schedule),
        the share of samples whose states blew up and count as wrong. Coordinates ``family``,
        ``real_blocks`` and ``steps`` on ``schedule``.

    Raises
    ------
    AnalysisError
        A jump without a map, a schedule for another number of blocks, or no schedules.
    """
    require_model(run, model)
    check_spared(model, spare_first)
    chosen_ks = checked_ks(ks, model.vocab_size)
    if not schedules:
        raise AnalysisError("no schedules to run; alternation.paper_schedules(...) makes them")
    for schedule in schedules:
        if schedule.n_blocks != model.n_blocks:
            raise AnalysisError(
                f"a schedule for {schedule.n_blocks} blocks given, but {model.name} has "
                f"{model.n_blocks}"
            )
        for source, target in schedule.jumps:
            if (source, target) not in maps:
                raise AnalysisError(
                    f"no map {source} → {target} among the maps, which schedule "
                    f"{schedule.text!r} jumps by; fit with pairs='all'"
                )
    view = chosen_samples(run, samples, seed)
    groups = groups_of(view, cluster)
    different = list({schedule.jumps: None for schedule in schedules})
    splices = [_splice(jumps, maps, spare_first) for jumps in different]
    rank = np.empty((len(different), view.n_samples), np.int32)
    surprisal, lost = np.empty(rank.shape, np.float32), np.empty(rank.shape, np.bool_)
    bar = tqdm(
        total=view.n_samples,
        desc="alternation",
        unit="sample",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar:
        for batch in batches(view, model, batch_tokens):
            splicer = Splicer(model, batch)
            changed = [splicer.spliced(splice) for splice in splices]
            ranks, values, of_lost = scores(model, splicer.original(), changed)
            rank[:, batch.samples], surprisal[:, batch.samples] = ranks, values
            lost[:, batch.samples] = of_lost
            bar.update(len(batch.samples))
    of = [different.index(schedule.jumps) for schedule in schedules]
    rank, surprisal, lost = rank[of], surprisal[of], lost[of]

    dataset = xr.Dataset(
        coords={
            "schedule": np.arange(len(schedules)),
            "k": chosen_ks,
            "family": ("schedule", [s.family for s in schedules]),
            "real_blocks": ("schedule", [s.real for s in schedules]),
            "steps": ("schedule", [s.text for s in schedules]),
        }
    )
    hits = np.stack([rank < k for k in chosen_ks], axis=1)
    dims = ("schedule", "k")
    add(dataset, "precision", dims, stats.proportion(hits, groups, level=LEVEL))
    add(dataset, "surprisal", dims[:1], stats.mean(surprisal, groups, level=LEVEL))
    dataset["nonfinite"] = ("schedule", lost.mean(axis=1))
    exit_of = {
        s.real: number
        for number, s in enumerate(schedules)
        if len(s.jumps) == 1 and s.jumps[0][1] == model.n_blocks
    }
    partner = np.array([exit_of.get(s.real, -1) for s in schedules])
    gain = stats.mean(hits.astype(np.int8) - hits[partner], groups, level=LEVEL)
    known = (partner >= 0)[:, None]
    kept = stats.Interval(*(np.where(known, part, np.nan) for part in gain))
    add(dataset, "precision_over_exit", dims, kept)
    if r2 is not None:
        dataset["product"] = ("schedule", [s.product(r2) for s in schedules])
    dataset.attrs.update(describe_samples(view, groups, cluster, LEVEL))
    dataset.attrs.update(n_blocks=model.n_blocks)
    record = results.provenance(
        "analysis.alternation.curves",
        runs={"evaluation": view},
        model=model,
        maps=maps,
        schedules=[schedule.jumps for schedule in schedules],
        ks=chosen_ks,
        samples=samples,
        seed=seed,
        cluster=cluster,
        spare_first=spare_first,
    )
    title = f"{run.model} on {run.corpus}{spared_note(spare_first)}"
    return results.label(dataset, "alternation", title, record)


def _splice(jumps: Sequence[tuple[int, int]], maps: MapSet, spared: int) -> Splice:
    changes: dict[int, Change | None] = {}
    for source, target in jumps:
        changes.update(dict.fromkeys(range(source, target)))
        changes[source] = maps[source, target]
    return Splice(blocks=changes, spared=spared)
