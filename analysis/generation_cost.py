"""What early exits while generating cost and save, against the full model and transformers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm

from actstore.errors import AnalysisError
from analysis import results, stats
from analysis.comparing import add
from analysis.generating import generate

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel


def measure(
    model: LanguageModel,
    prompts: Sequence[str | Sequence[int]],
    maps: MapSet | None,
    *,
    max_new_tokens: int = 32,
    level: float = 0.95,
    progress: bool | None = None,
    **options: Any,
) -> xr.Dataset:
    """Early-exit generation against the full model: blocks, wall time, and agreement.

    For every prompt, in turn: early exits; the same loop with all blocks; and transformers' own
    greedy ``generate`` with its cache, all of equally many tokens.

    Parameters
    ----------
    model, maps, max_new_tokens
        As for `generate`.
    prompts : sequence of str or token ids
    level : float
        Of the intervals.
    progress : bool, optional
        Show a progress bar; default: on a terminal.
    **options
        The other options of `generate`.

    Returns
    -------
    xarray.Dataset
        Means over prompts with Student's t intervals: ``seconds`` (way) per new token;
        ``layer``, ``blocks``, ``calls`` and ``reads`` per new token with early exits; and
        ``agreement``, the share of tokens that are the full model's own choice after the same
        prefix. Wall times are those of this machine, at this time.
    """
    if not prompts or "stop_ids" in options:
        raise AnalysisError("give prompts, and no stop_ids: all ways must make as many tokens")
    rows = []
    bar = tqdm(
        prompts,
        desc="generate",
        unit="prompt",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    alike: dict[str, Any] = {"max_new_tokens": max_new_tokens, "progress": False}
    for prompt in bar:
        early = generate(model, prompt, maps, **alike, **options)
        full = generate(model, prompt, None, exits=(), shortcut="id", **alike)
        ids = [*early.attrs["prompt_ids"], *early.token_id.values.tolist()]
        rows.append(
            {
                "seconds": [
                    float(early.seconds.mean()),
                    float(full.seconds.mean()),
                    _transformers_seconds(model, early.attrs["prompt_ids"], max_new_tokens),
                ],
                **{name: float(early[name].mean()) for name in ("layer", "blocks", "calls")},
                "reads": float(early.reads.mean()),
                "agreement": _agreement(model, ids, len(early.attrs["prompt_ids"])),
            }
        )
    dataset = xr.Dataset(coords={"way": ["early exit", "same loop, all blocks", "transformers"]})
    for name in rows[0]:
        values = np.array([row[name] for row in rows]).T
        units = {"seconds": "s", "agreement": "1", "layer": "1", "reads": "1"}.get(name, "blocks")
        dims = ("way",) if name == "seconds" else ()
        add(dataset, name, dims, stats.mean(values, level=level), units)
    dataset.attrs.update(
        prompts=len(prompts), max_new_tokens=max_new_tokens, level=level, n_blocks=model.n_blocks
    )
    record = results.provenance(
        "analysis.early_exit.measure",
        model=model,
        maps=maps,
        max_new_tokens=max_new_tokens,
        prompts=len(prompts),
        **options,
    )
    return results.label(dataset, "generation", model.name, record)


def _agreement(model: LanguageModel, ids: Sequence[int], start: int) -> float:
    """Share of the tokens from `start` on that are the full model's choice after those before."""
    sequence = np.array(ids[:-1], np.int32)
    positions = np.arange(start - 1, len(sequence))
    last = model.n_blocks
    states = model.capture([sequence], [positions], {"resid": [last]})["resid"][0]
    return float((model.decode(states).argmax(axis=1) == np.array(ids[start:])).mean())


def _transformers_seconds(model: LanguageModel, ids: Sequence[int], new: int) -> float:
    """Seconds per token of transformers' greedy generation."""
    batch = torch.as_tensor([list(ids)], device=model.device)
    options: dict[str, Any] = {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new}
    with model.exclusive():
        started = time.perf_counter()
        model.model.generate(batch, attention_mask=torch.ones_like(batch), **options)
        return (time.perf_counter() - started) / new
