"""Greedy generation that stops running blocks as soon as the next token is clear.

The rule is that of "Jump to Conclusions" (arXiv 2303.09435) §4. What it leaves open is what later
tokens attend to in the blocks that an early one skipped. Two answers are given:

``cache="exact"``
    A token that leaves early waits, with its state, below the first block it skipped. When a
    later token goes further, the waiting ones go through that block with it, in one call. Every
    key and value is the one the full model would have computed, so each exit decision and token
    equal (up to rounding) those of the rule applied to a full forward pass over the same prefix.
    A block runs at most once for each position, and not at all for those nobody asks about.
``cache="mapped"``
    Keys and values of skipped blocks are computed at once from the state that the map to that
    block predicts (``mat``; A_{l→n} h_l for block n) or from the state itself (``id``, as CALM
    does, arXiv 2207.07061 §3.1). It costs their projections, no attention and no feed-forward,
    and nothing is run later; but what later tokens see there is an approximation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm

from actstore.corpus import token_strings
from actstore.errors import AnalysisError
from actstore.grams.threads import one_blas_thread
from analysis import results
from analysis.comparing import confidence_gap
from analysis.walking import Walk

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel

CACHES = ("exact", "mapped")


def generate(
    model: LanguageModel,
    prompt: str | Sequence[int],
    maps: MapSet | None,
    *,
    lambda_: float = 0.9,
    exits: Sequence[int] | None = None,
    shortcut: str = "mat",
    cache: str = "exact",
    max_new_tokens: int = 32,
    stop_ids: Sequence[int] = (),
    mean_length: float | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Continue a prompt greedily, each token from the first layer that is sure enough of it.

    Parameters
    ----------
    model : LanguageModel
        Causal, with a head and a key/value cache.
    prompt : str, or token ids
        A string is tokenised with the tokenizer's own special tokens. All but its last token
        run through all blocks.
    maps : MapSet, or None
        ``mat`` needs the maps from each exit to the last layer, and for ``cache="mapped"`` to
        every block between.
    lambda_ : float
        As for `analysis.early_exit.threshold`; above 1.112 nothing leaves early.
    exits : sequence of int, optional
        Layers at which to decode and perhaps leave; default: 1 … L−1. Each costs one product
        with the vocabulary, which for small models is more than a block.
    shortcut : "mat" or "id"
    cache : "exact" or "mapped"
        See the module's description.
    max_new_tokens : int
    stop_ids : sequence of int
        Stop behind any of these tokens.
    mean_length : float, optional
        N of the threshold; default: the mean length of the prefixes that are continued.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        Per ``token``: ``token_id``, ``text``, ``layer`` it left at, ``confidence`` (NaN at the
        last layer), ``blocks`` (block runs, each position counted), ``calls`` (block runs, a
        call with several positions counted once), ``reads`` (products with the vocabulary),
        ``seconds``. The prompt's other tokens are not counted. ``attrs["continuation"]``.

    Raises
    ------
    AnalysisError
        A model that is not causal, has no head or no plain cache; a map or exit missing.
    """
    ids, last = _ids(model, prompt), model.n_blocks
    if cache not in CACHES or shortcut not in ("mat", "id"):
        raise AnalysisError(
            f"cache={cache!r}, shortcut={shortcut!r}; choose from {CACHES} and ('mat', 'id')"
        )
    chosen = _exits(model, exits)
    bridge = _bridge(maps, shortcut, cache, chosen, last)
    if max_new_tokens < 1:
        raise AnalysisError(f"max_new_tokens={max_new_tokens}; at least 1")
    length = mean_length or len(ids) + (max_new_tokens - 1) / 2
    steps: list[tuple[Any, ...]] = []
    prompt_length = len(ids)
    bar = tqdm(
        total=max_new_tokens,
        desc="generate",
        unit="token",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    # Threads of numpy's BLAS, which multiplies by the vocabulary, wait for their next product on
    # the cores that torch's own need: with several, each small step of torch takes twice as long.
    with bar, one_blas_thread(), model.exclusive():
        walk = Walk(model, ids, propagate=bridge if cache == "mapped" else None)
        while len(steps) < max_new_tokens and not (steps and steps[-1][0] in stop_ids):
            started = time.perf_counter()
            limit = 0.9 * lambda_ + 0.1 * np.exp(-4 * (len(walk.ids) - 1) / length)
            step = _step(walk, model, chosen, bridge, limit)
            walk.ids.append(step[0])
            steps.append((*step, time.perf_counter() - started))
            bar.update()
    columns = list(zip(*steps, strict=True))
    names = ("token_id", "layer", "confidence", "blocks", "calls", "reads", "seconds")
    dataset = xr.Dataset(
        {name: ("token", np.array(column)) for name, column in zip(names, columns, strict=True)},
        coords={"position": ("token", prompt_length + np.arange(len(steps)))},
    )
    dataset.seconds.attrs["units"] = "s"
    if model.tokenizer is not None:
        new = dataset.token_id.values
        dataset["text"] = ("token", token_strings(model.tokenizer, new))
        dataset.attrs["continuation"] = model.tokenizer.decode(new.tolist())
    dataset.attrs.update(n_blocks=last, prompt_ids=ids[:prompt_length])
    record = results.provenance(
        "analysis.early_exit.generate",
        model=model,
        maps=maps,
        prompt=ids[:prompt_length],
        lambda_=lambda_,
        exits=chosen,
        shortcut=shortcut,
        cache=cache,
        mean_length=length,
    )
    return results.label(dataset, "generated", model.name, record)


def _step(
    walk: Walk,
    model: LanguageModel,
    exits: Sequence[int],
    bridge: Callable[[int, int, torch.Tensor], torch.Tensor],
    limit: float,
) -> tuple[int, int, float, int, int, int]:
    """Next token, layer, confidence, and the work done for them."""
    states, last = walk.begin(), model.n_blocks
    work = reads = 0
    for block in range(last):
        states = walk.through(block, states)
        work += states.shape[1]
        layer = block + 1
        if layer not in exits and layer < last:
            continue
        here = states[:, -1]
        logits = model.decode(
            (here if layer == last else bridge(layer, last, here)).numpy(force=True)
        )
        reads += 1
        best = logits.argmax(axis=1)
        sure = float(confidence_gap(logits, best)[0]) if layer < last else np.nan
        if layer < last and sure > limit:
            walk.leave(layer, states)
        if layer == last or sure > limit:
            return int(best[0]), layer, sure, work, layer, reads
    raise AssertionError("the last layer always answers")


def _bridge(
    maps: MapSet | None, shortcut: str, cache: str, exits: Sequence[int], last: int
) -> Callable[[int, int, torch.Tensor], torch.Tensor]:
    """(layer, later layer, states) → what the later layer is taken to be."""
    for layer in exits if shortcut == "mat" else ():
        for target in range(layer + 1 if cache == "mapped" else last, last + 1):
            if maps is None or (layer, target) not in maps:
                raise AnalysisError(
                    f"no map {layer} → {target} among the maps; fit with pairs='all', choose other "
                    "exits, or shortcut='id'"
                )

    def bridge(layer: int, target: int, states: torch.Tensor) -> torch.Tensor:
        if shortcut == "id" or layer == target or maps is None:
            return states
        mapped: torch.Tensor = maps[layer, target](states)
        return mapped

    return bridge


def _exits(model: LanguageModel, exits: Sequence[int] | None) -> list[int]:
    if not model.causal or not model.has_head:
        raise AnalysisError(f"{model.name} is not a causal model with a head; it cannot generate")
    chosen = list(range(1, model.n_blocks)) if exits is None else sorted({int(e) for e in exits})
    if chosen and not 1 <= chosen[0] <= chosen[-1] < model.n_blocks:
        raise AnalysisError(
            f"exits {chosen}; {model.name} can be left early at layers 1…{model.n_blocks - 1}"
        )
    return chosen


def _ids(model: LanguageModel, prompt: str | Sequence[int]) -> list[int]:
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise AnalysisError(f"{model.name} has no tokenizer; give the prompt as token ids")
        prompt = model.tokenizer(prompt)["input_ids"]
    ids = [int(token) for token in prompt]
    if not ids:
        raise AnalysisError("the prompt has no tokens; give at least one")
    return ids
