"""Linear maps in place of attention, feed-forward and norms, one kind at a time.

"Jump to Conclusions" (arXiv 2303.09435) §5: in every block a map is fitted, without bias, from
what a sub-module reads to what it adds or returns. From layer l on, all blocks then run with the
maps of one kind in place of that sub-module, at all positions. Which kind costs least says which
part of the blocks does work that a linear map cannot.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from actstore.errors import AnalysisError, SiteError
from actstore.fitting import LinearMap, MapSet
from actstore.fitting import fit as fit_maps
from actstore.grams import gram
from actstore.grams.columns import Column, Columns
from analysis import results, stats
from analysis.comparing import add, checked_ks, compare, describe_samples, groups_of, layer_shares
from analysis.decoding import readouts_to_last, require_model
from analysis.rerunning import batches, chosen_samples, scores
from analysis.splicing import Splice, Splicer, check_spared, require_pre_norm, spared_note

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run

PARTS = ("attn", "ffn", "ln")
SITE_PAIRS = (("ln1", "attn"), ("ln2", "mlp"), ("resid", "ln1"), ("resid_mid", "ln2"))
"""What each sub-module reads and gives: attention, feed-forward, first and second norm."""
SITES = ("resid", "ln1", "attn", "resid_mid", "ln2", "mlp")
"""What must be in the store: ``actstore.extract(..., sites=analysis.submodules.SITES)``."""

LEVEL = 0.95


def fit(run: Run, *, ridge: float = 0.0, progress: bool | None = None) -> MapSet:
    """Fit the four maps of every block whose sites are in the store.

    A_attn: ln1 → attn, A_ffn: ln2 → mlp, A_ln1: resid → ln1, A_ln2: resid_mid → ln2, by least
    squares without bias at the stored positions of the unchanged run ("Jump to Conclusions" §5).

    Parameters
    ----------
    run : Run
        Fitting samples, with the sites `SITES`.
    ridge : float
        As for `actstore.fit`.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    MapSet
        Keyed ``maps[("ln1", b), ("attn", b)]``, ``maps[("ln2", b), ("mlp", b)]`` and so on.

    Raises
    ------
    SiteError
        A site is missing in the run.
    """
    blocks = _stored_blocks(run)
    columns = Columns([Column(s, b, run.width(s)) for s in SITES for b in blocks], run.model)
    maps: dict[tuple[int, int], LinearMap] = {}
    record: dict[str, Any] = {}
    bar = tqdm(
        blocks,
        desc="fit sub-modules",
        unit="block",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    for block in bar:
        pairs = [((source, block), (target, block)) for source, target in SITE_PAIRS]
        moments = gram(run, sites=SITES, layers=[block], cache=False, progress=False)
        fitted = fit_maps(moments, pairs=pairs, ridge=ridge, progress=False)
        record = fitted.provenance
        for source, target in pairs:
            place = columns.index(source), columns.index(target)
            maps[place] = fitted[source, target]
    return MapSet(dict(sorted(maps.items())), columns, record)


def curves(
    run: Run,
    parts: MapSet,
    model: LanguageModel,
    *,
    maps: MapSet | None = None,
    kinds: Sequence[str] = PARTS,
    layers: Sequence[int] | None = None,
    ks: Sequence[int] = (1, 5, 10),
    samples: int | None = None,
    seed: int = 0,
    cluster: str | None = "document",
    spare_first: int = 0,
    batch_tokens: int = 4096,
    progress: bool | None = None,
) -> xr.Dataset:
    """Precision@k and surprisal when one kind of sub-module is linear from layer l on.

    With A the fitted maps, block x ↦ y becomes ("Jump to Conclusions" §5)

    * ``attn``: c = x + A_attn·ln1(x), y = c + ffn(ln2(c));
    * ``ffn``: c = x + attn(ln1(x)), y = c + A_ffn·ln2(c);
    * ``ln``: c = x + attn(A_ln1·x), y = c + ffn(A_ln2·c);

    in blocks l … L−1 at all positions, then the model's own final norm and head. The sequences
    are run anew, up to the last sampled position where the model is causal. Precision and
    surprisal compare with the unchanged run, as in `analysis.prediction.curves`; the paired
    difference is against ``mat``.

    Parameters
    ----------
    run : Run
        Evaluation samples. With `maps`, their layers of the residual stream too.
    parts : MapSet
        What `fit` returned, of other samples.
    model : LanguageModel
        The one that the run was extracted from: sequential pre-norm blocks.
    maps : MapSet, optional
        Maps to the last layer: adds ``mat`` and ``id`` on the same samples.
    kinds : sequence of "attn", "ffn", "ln"
    layers : sequence of int, optional
        The l; default: 0…L. A pass costs L − l blocks for each kind.
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
        ``precision`` (shortcut, layer, k) and ``surprisal`` (shortcut, layer) with intervals,
        and with `maps` also ``precision_over_mat`` (shortcut, layer, k), paired. ``nonfinite``
        (shortcut, layer) is the share of samples whose states blew up; they count as wrong, with
        the surprisal of the model's least likely token.

    Raises
    ------
    AnalysisError
        Parallel or post-norm blocks; a block without maps; an unknown kind.
    """
    require_pre_norm(model)
    require_model(run, model)
    check_spared(model, spare_first)
    unknown = [kind for kind in kinds if kind not in PARTS]
    if unknown or not kinds:
        raise AnalysisError(f"kind {unknown[0] if unknown else ''!r}; choose from {PARTS}")
    chosen_ks = checked_ks(ks, model.vocab_size)
    last = model.n_blocks
    chosen = sorted(set(range(last + 1) if layers is None else layers))
    if not chosen or chosen[0] < 0 or chosen[-1] > last:
        raise AnalysisError(f"layers {chosen} asked for; {model.name} has layers 0…{last}")
    changes = _changes(parts, kinds, range(chosen[0], last))
    view = chosen_samples(run, samples, seed)
    groups = groups_of(view, cluster)
    readouts = None
    if maps is not None:
        readouts = readouts_to_last(view, maps, model, ("mat", "id"))
        chosen = [layer for layer in chosen if layer in readouts]
        readouts = {layer: readouts[layer] for layer in sorted({*chosen, last})}

    shape = (len(kinds), len(chosen), view.n_samples)
    rank, surprisal = np.empty(shape, np.int32), np.empty(shape, np.float32)
    lost = np.empty(shape, np.bool_)
    splices = {
        (k, number): _splice(changes[kind], range(layer, last), spare_first)
        for k, kind in enumerate(kinds)
        for number, layer in enumerate(chosen)
    }
    bar = tqdm(
        total=view.n_samples,
        desc="sub-modules",
        unit="sample",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar:
        for batch in batches(view, model, batch_tokens):
            splicer = Splicer(model, batch)
            changed = [splicer.spliced(splice) for splice in splices.values()]
            scored = scores(model, splicer.original(), changed)
            for place, of_rank, of_value, of_lost in zip(splices, *scored, strict=True):
                rank[place][batch.samples] = of_rank
                surprisal[place][batch.samples] = of_value
                lost[place][batch.samples] = of_lost
            bar.update(len(batch.samples))

    names = list(kinds)
    if readouts is not None:
        found = compare(view, model, readouts, ("mat", "id"), progress=progress)
        kept = [n for n, layer in enumerate(readouts) if layer in chosen]
        names = ["mat", "id", *names]
        rank = np.concatenate([found.rank[:, kept], rank])
        surprisal = np.concatenate([found.surprisal[:, kept], surprisal])
        lost = np.concatenate([np.zeros_like(rank[:2], np.bool_), lost])
    dataset = xr.Dataset(
        coords={
            "shortcut": names,
            "layer": chosen,
            "k": chosen_ks,
            "depth": ("layer", np.array(chosen) / last),
        }
    )
    hits = np.stack([rank < k for k in chosen_ks], axis=2)
    dims = ("shortcut", "layer", "k")
    add(dataset, "precision", dims, layer_shares(hits, groups, chosen, last, LEVEL))
    add(dataset, "surprisal", dims[:2], stats.mean(surprisal, groups, level=LEVEL))
    dataset["nonfinite"] = (dims[:2], lost.mean(axis=2))
    if readouts is not None:
        gain = hits.astype(np.int8) - hits[:1]
        add(dataset, "precision_over_mat", dims, stats.mean(gain, groups, level=LEVEL))
    dataset.attrs.update(describe_samples(view, groups, cluster, LEVEL))
    record = results.provenance(
        "analysis.submodules.curves",
        runs={"evaluation": view},
        model=model,
        maps=maps,
        parts=parts.provenance,
        kinds=list(kinds),
        layers=chosen,
        ks=chosen_ks,
        samples=samples,
        seed=seed,
        cluster=cluster,
        spare_first=spare_first,
    )
    title = f"{run.model} on {run.corpus}{spared_note(spare_first)}"
    return results.label(dataset, "submodules", title, record)


def _stored_blocks(run: Run) -> list[int]:
    missing = [site for site in SITES if site not in run.sites]
    if missing:
        raise SiteError(
            f"sub-modules need site {missing[0]!r}, but {run.model}/{run.corpus} has "
            f"{', '.join(run.sites)}; extract with sites={SITES}"
        )
    blocks = set.intersection(*(set(run.sites[site]) for site in SITES))
    if not blocks:
        raise SiteError(f"no block of {run.model}/{run.corpus} has all the sites {SITES} in view")
    return sorted(blocks)


Changes = Mapping[str, tuple[str | None, Mapping[int, LinearMap]]]


def _changes(parts: MapSet, kinds: Sequence[str], blocks: range) -> dict[str, Changes]:
    """For each kind: site replaced → (site read, the map of each block)."""

    def maps(source: str, target: str) -> dict[int, LinearMap]:
        for block in blocks:
            if ((source, block), (target, block)) not in parts:
                raise AnalysisError(
                    f"no map {source} → {target} of block {block} among the parts; fit them with "
                    "analysis.submodules.fit on a run that holds all blocks"
                )
        return {block: parts[(source, block), (target, block)] for block in blocks}

    made: dict[str, Changes] = {}
    for kind in kinds:
        if kind == "attn":
            made[kind] = {"attn": ("ln1", maps("ln1", "attn"))}
        elif kind == "ffn":
            made[kind] = {"mlp": ("ln2", maps("ln2", "mlp"))}
        else:
            made[kind] = {
                "ln1": (None, maps("resid", "ln1")),
                "ln2": (None, maps("resid_mid", "ln2")),
            }
    return made


def _splice(changes: Changes, blocks: range, spared: int) -> Splice:
    return Splice(
        inside={
            (block, site): (read, maps[block])
            for site, (read, maps) in changes.items()
            for block in blocks
        },
        spared=spared,
    )
