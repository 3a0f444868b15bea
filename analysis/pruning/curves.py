"""Perplexity against the number of blocks taken out, in four ways.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §4.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import actstore
from actstore.errors import AnalysisError
from analysis import perplexity as measuring
from analysis import results
from analysis.pruning.distilling import MAPS, WHOLE
from analysis.pruning.judging import Judge
from analysis.pruning.ranking import Ranking, rank_blocks, states
from analysis.pruning.replacing import fit_maps
from analysis.pruning.variants import USED, VARIANTS, Pruner
from analysis.stats import Interval
from analysis.training import Batches, Recipe, token_stream

if TYPE_CHECKING:
    from actstore.fitting import LinearMap
    from actstore.models import LanguageModel


def curves(
    model: LanguageModel,
    train: Any,
    held_out: Any,
    counts: Sequence[int],
    *,
    variants: Sequence[str] = VARIANTS,
    by: str = "linearity",
    rescored: bool = False,
    ranking: Ranking | None = None,
    first_token: str | int = "keep",
    intercept: bool = True,
    ridge: float = 0.0,
    context: int = 512,
    stride: int | None = None,
    bos: str = "tokenizer",
    cluster: str | None = None,
    distil_text: Any = None,
    distil_context: int = 128,
    distil_batch: int = 4,
    maps_recipe: Recipe = MAPS,
    whole_recipe: Recipe = WHOLE,
    logits: float = 1.0,
    hidden: float = 0.0,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Perplexity on held-out text with n blocks removed or replaced, for several n.

    * ``remove``: the blocks are gone;
    * ``replace``: the fitted map is in the place of each;
    * ``replace_distilled``: the same, the maps then distilled (`distil_maps`);
    * ``remove_distilled``: gone, all parameters left then distilled (`distil`).

    Parameters
    ----------
    model : LanguageModel
        Untouched.
    train : corpus
        Ranks the blocks and fits the maps, from its first `context` tokens of each document.
    held_out : corpus
        Judges; share no document between the two.
    counts : sequence of int
        How many of the ranked blocks to take out; 0 is the whole model.
    variants : sequence of str
        Of `VARIANTS`.
    by, rescored, first_token
        As for `rank_blocks`; `first_token` also for `fit_maps` and `distil_maps`.
    ranking : Ranking, optional
        An order that is at hand; `by` and `rescored` then go unused.
    intercept, ridge
        As for `fit_maps`.
    context, stride, bos, cluster
        As for `analysis.perplexity.perplexity`.
    distil_text : corpus, optional
        What is distilled on; default: `train`.
    distil_context, distil_batch : int
        Tokens of a window, and windows of a batch.
    maps_recipe, whole_recipe : Recipe
        For the two kinds of distillation.
    logits, hidden : float
        As for `distil`.
    seed : int
        Of the batches.
    folder : path, optional
        Where states, checkpoints and what was measured are kept, so that a call that was
        interrupted goes on, and each pruned model is saved there as ``variant-n``.
    progress : bool, optional

    Returns
    -------
    xarray.Dataset
        Over (variant, count): ``perplexity`` and ``nll`` with ``_low`` and ``_high``; ``ratio``
        to the whole model's perplexity, paired by document; ``generates``, whether greedy
        generation with its key/value cache gives the tokens that the model gives without one;
        ``continuation``, that text; ``parameters``; and ``document_nll`` (variant, count,
        document), summed over ``document_tokens``, from which any two are compared by document
        (`compare_variants`). NaN where logits are not finite. By ``step``:
        ``order``, the block taken out, and ``criterion`` (scored, block) that it was chosen by.

    Raises
    ------
    AnalysisError, ModelError
        Counts or variants that cannot be; a family whose blocks cannot be taken out.
    """
    chosen, most = _checked(model, counts, variants)
    corpus = actstore.read_corpus(train)
    judged = actstore.read_corpus(held_out)
    text = corpus if distil_text is None else actstore.read_corpus(distil_text)
    with tempfile.TemporaryDirectory(prefix="actstore-pruning-") as scratch:
        place = Path(scratch if folder is None else folder)
        run = states(
            model, corpus, place / "states.zarr", context=context, bos=bos, progress=progress
        )
        if ranking is None:
            ranking = rank_blocks(
                run,
                by=by,
                rescored=rescored,
                model=model,
                count=most,
                first_token=first_token,
                progress=progress,
            )
        taken = ranking.order[:most]

        def fit() -> dict[int, LinearMap]:
            return fit_maps(
                run,
                taken,
                intercept=intercept,
                ridge=ridge,
                first_token=first_token,
                progress=progress,
            )

        stream, prefix = token_stream(model.tokenizer, text, bos)
        pruner = Pruner(
            model,
            fit,
            Batches(stream, distil_context, distil_batch, seed, prefix),
            maps_recipe=maps_recipe,
            whole_recipe=whole_recipe,
            first_token=first_token,
            weights=(logits, hidden),
            seed=seed,
            progress=progress,
        )
        judge = Judge(model, judged, context, stride, bos, cluster, place, progress)
        choices: dict[str, Any] = {
            "by": ranking.by,
            "rescored": ranking.rescored,
            "first_token": first_token,
            "intercept": intercept,
            "ridge": ridge,
            "context": context,
            "stride": stride,
            "bos": bos,
            "cluster": cluster,
            "distil_context": distil_context,
            "distil_batch": distil_batch,
            "maps_recipe": maps_recipe.to_dict(),
            "whole_recipe": whole_recipe.to_dict(),
            "logits": logits,
            "hidden": hidden,
            "seed": seed,
        }
        key: dict[str, Any] = {
            "train": corpus.fingerprint(),
            "distil_text": text.fingerprint(),
            **choices,
        }
        cells = {}
        whole = judge("whole", [], {}, lambda _: model.model)
        for count in chosen:
            for variant in variants:
                blocks = taken[:count]
                cells[variant, count] = (
                    judge(
                        f"{variant}-{count}",
                        blocks,
                        {name: key[name] for name in USED[variant]},
                        lambda at, variant=variant, blocks=blocks: pruner(variant, blocks, at),
                    )
                    if count
                    else whole
                )
    dataset = _table(cells, whole, list(variants), chosen)
    dataset["order"] = ("step", taken)
    dataset["criterion"] = (("scored", "block"), ranking.scores)
    dataset.attrs.update(
        choices_of(choices),
        stride=whole.attrs["stride"],
        blocks=model.n_blocks,
        level=whole.attrs["level"],
        tokens=whole.attrs["tokens"],
        documents=whole.attrs["documents"],
        clusters=whole.attrs["clusters"],
        fitted_on=run.n_samples,
        distilled_on=[
            recipe.steps * distil_batch * distil_context for recipe in (maps_recipe, whole_recipe)
        ],
    )
    record = results.provenance(
        "analysis.pruning.curves",
        model=model,
        held_out=judged.fingerprint(),
        counts=chosen,
        variants=list(variants),
        order=taken,
        **key,
    )
    return results.label(dataset, "pruning", model.name, record)


def compare_variants(
    dataset: xr.Dataset, first: str, second: str, count: int, *, level: float = 0.95
) -> Interval:
    """How many times the second variant's perplexity is the first's, paired by document.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `curves` returned.
    first, second : str
        Variants.
    count : int
        Blocks taken out of both.
    level : float
    """
    sums = dataset.document_nll.sel(count=count)
    apart = sums.sel(variant=second).values - sums.sel(variant=first).values
    found = measuring.ratio(
        apart, dataset.document_tokens.values, dataset.cluster.values, level=level
    )
    return Interval(*(np.exp(value) for value in found))


def choices_of(choices: dict[str, Any]) -> dict[str, Any]:
    """The choices that a Zarr attribute can hold and a reader wants to see."""
    return {
        key: int(value) if isinstance(value, bool) else value
        for key, value in choices.items()
        if isinstance(value, str | int | float)
    }


def _table(
    cells: dict[tuple[str, int], xr.Dataset],
    whole: xr.Dataset,
    variants: list[str],
    counts: list[int],
) -> xr.Dataset:
    dims = ("variant", "count")
    dataset = xr.Dataset(coords={"variant": variants, "count": counts})

    def put(name: str, values: Any) -> None:
        table = [[values[variant, count] for count in counts] for variant in variants]
        dataset[name] = (dims, np.array(table))

    for name in ("perplexity", "nll"):
        for end in ("", "_low", "_high"):
            put(name + end, {at: float(cell[name + end]) for at, cell in cells.items()})
    ratios = {at: measuring.compare(whole, cell) for at, cell in cells.items()}
    for end in ("", "_low", "_high"):
        put("ratio" + end, {at: float(one["ratio" + end]) for at, one in ratios.items()})
    dataset = dataset.assign_coords(document=whole.document, cluster=whole.cluster)
    table = [
        [cells[variant, count].document_nll.values for count in counts] for variant in variants
    ]
    dataset["document_nll"] = ((*dims, "document"), np.array(table), {"units": "nats"})
    dataset["document_tokens"] = whole.document_tokens
    put("generates", {at: bool(cell.generates) for at, cell in cells.items()})
    put("continuation", {at: str(cell.continuation.item()) for at, cell in cells.items()})
    put("parameters", {at: int(cell.parameters) for at, cell in cells.items()})
    return dataset


def _checked(
    model: LanguageModel, counts: Sequence[int], variants: Sequence[str]
) -> tuple[list[int], int]:
    chosen = sorted({int(count) for count in counts})
    if not chosen or chosen[0] < 0 or chosen[-1] >= model.n_blocks:
        raise AnalysisError(
            f"counts={list(counts)}; of {model.n_blocks} blocks, 0…{model.n_blocks - 1} can be "
            "taken out"
        )
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown or not variants:
        raise AnalysisError(f"variants={list(variants)}; choose from {VARIANTS}")
    return chosen, chosen[-1]
