"""A training loop whose steps are functions of their number."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import NonFiniteError
from analysis.training.checkpoints import latest, restore, save
from analysis.training.recipe import Recipe, optimiser_of

Losses = Mapping[str, torch.Tensor]


def train(
    parameters: Mapping[str, torch.nn.Parameter],
    losses: Callable[[int], Losses],
    recipe: Recipe,
    *,
    seed: int,
    folder: str | os.PathLike[str] | None = None,
    every: int = 100,
    identity: Mapping[str, Any] | None = None,
    description: str = "training",
    progress: bool | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Train parameters in place.

    Parameters
    ----------
    parameters : mapping of name to Parameter
        What is trained; tied ones once.
    losses : function of the step
        Gives ``loss``, which is descended, and any other scalars to be logged. It may draw from
        torch's random numbers: they are seeded from (seed, step) around each call.
    recipe : Recipe
    seed : int
    folder : path, optional
        Where checkpoints are put: safetensors and JSON, no pickle, each whole or not there.
        Training goes on from the one found there.
    every : int
        Steps between checkpoints; the last step has one too.
    identity : mapping, optional
        JSON of all that determines the run. A checkpoint of another is refused.
    description : str
        Of the progress bar.
    progress : bool, optional

    Returns
    -------
    dict of str to (steps,) float64 array
        What `losses` gave, and ``learning_rate`` and ``gradient_norm`` (before it was clipped).

    Raises
    ------
    AnalysisError
        The checkpoint is of another run; the message says what differs.
    CorruptionError
        The checkpoint is not what was written.
    NonFiniteError
        A loss is NaN or infinite; the last checkpoint stays.
    """
    optimiser = optimiser_of(parameters, recipe)
    record = json.loads(json.dumps({**(identity or {}), "seed": seed, **recipe.to_dict()}))
    place = None if folder is None else Path(folder)
    log: dict[str, list[float]] = {}
    start = 0
    if place is not None and (kept := latest(place)) is not None:
        start, log = restore(kept, parameters, optimiser, record)
    with tqdm(
        total=recipe.steps,
        initial=start,
        desc=description,
        unit="step",
        file=sys.stderr,
        disable=None if progress is None else not progress,
    ) as bar:
        for step in range(start, recipe.steps):
            row = _step(step, parameters, losses, optimiser, recipe, seed)
            for name, value in row.items():
                log.setdefault(name, []).append(value)
            bar.set_postfix(loss=f"{row['loss']:.4f}", refresh=False)
            bar.update()
            done = step + 1
            if place is not None and (done % every == 0 or done == recipe.steps):
                save(place, done, parameters, optimiser, log, record)
    return {name: np.array(values) for name, values in log.items()}


def _step(
    step: int,
    parameters: Mapping[str, torch.nn.Parameter],
    losses: Callable[[int], Losses],
    optimiser: torch.optim.Optimizer,
    recipe: Recipe,
    seed: int,
) -> dict[str, float]:
    for group in optimiser.param_groups:
        group["lr"] = recipe.rate(step)
    optimiser.zero_grad(set_to_none=True)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
        found = losses(step)
    found["loss"].backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), recipe.clip)
    row = {name: float(value.detach()) for name, value in found.items()}
    row |= {"learning_rate": recipe.rate(step), "gradient_norm": float(norm)}
    if not all(map(math.isfinite, row.values())):
        raise NonFiniteError(
            f"step {step}: loss {row['loss']}, gradient norm {row['gradient_norm']}; lower "
            f"learning_rate={recipe.learning_rate}"
        )
    optimiser.step()
    return row
