"""Training what is left of a pruned model to do what the whole one did."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from actstore.errors import AnalysisError
from actstore.models.provenance import weights_fingerprint
from analysis.pruning.modules import blocks_of, linear_blocks
from analysis.pruning.teaching import all_trained, layerwise, run_blocks, teaching
from analysis.pruning.whitened import Change
from analysis.training import Batches, Recipe, train

if TYPE_CHECKING:
    from actstore.models import LanguageModel

MAPS = Recipe(steps=100, learning_rate=0.2, weight_decay=0.0, clip=float("inf"), optimiser="sgd")
WHOLE = Recipe(steps=100, learning_rate=1e-4, weight_decay=0.0)

_MEASURED = 8  # batches that the whitening is taken from

Log = dict[str, NDArray[Any]]


def distil_maps(
    teacher: LanguageModel,
    student: Any,
    batches: Batches,
    *,
    recipe: Recipe = MAPS,
    first_token: str | int = "keep",
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    every: int = 50,
    progress: bool | None = None,
) -> Log:
    """Train the linear maps of a model, layer by layer, towards the original blocks' outputs.

    "Your Transformer is Secretly Linear" (arXiv 2405.12250) §4. Each map gets the stream as it is
    in the student, with the maps before it in place, and is trained towards what the original
    model's stream is behind that block, by the mean squared error; no gradient passes from one
    map to another, or through the blocks between. (On the original model's own stream there would
    be nothing to train: the maps that were fitted are the best there.)

    Few directions of the stream are hundreds of times larger than the others, which gradient
    descent on the maps themselves cannot follow. It is done on what each map makes of whitened
    inputs, where every direction is as steep as the others and a rate of 1 would be a Newton
    step. A batch with a token that stands out from those the whitening was taken from is steeper
    there, and its step is shorter by as much.

    Parameters
    ----------
    teacher : LanguageModel
        The original; untouched.
    student : transformers.PreTrainedModel
        What `replace` returned; its maps are trained in place, nothing else.
    batches : Batches
        Text for both.
    recipe : Recipe
        By default plain gradient descent; its rate, between 0 and 1, is the share of a Newton
        step on each batch.
    first_token : {"keep", "drop"} or int
        Whether first positions count in the loss.
    seed, folder, every, progress
        As for `analysis.training.train`.

    Returns
    -------
    dict of str to (steps,) float64 array
        ``loss``, half the squared error over the target's variance and the steepness of the
        batch, summed over maps; and ``block 3``…, the squared error of each map over its target's
        variance in the batch.

    Raises
    ------
    AnalysisError
        The student has no linear blocks.
    """
    maps = linear_blocks(student)
    if not maps:
        raise AnalysisError(
            "the model has no linear blocks to distil; analysis.pruning.replace makes them"
        )
    skipped = _skipped(first_token, batches.context)
    targets = sorted(maps)
    with torch.no_grad():
        seen = [layerwise(teacher, student, batches(step), targets) for step in range(_MEASURED)]
    changes = {
        block: Change(
            maps[block],
            torch.cat([inputs[block][:, skipped:].flatten(0, 1) for inputs, _ in seen]),
            torch.cat([outputs[block][:, skipped:].flatten(0, 1) for _, outputs in seen]),
        )
        for block in targets
    }
    del seen
    identity = {
        "what": "distil_maps",
        "teacher": teacher.fingerprint(),
        "blocks": targets,
        "first_token": first_token,
        "student": weights_fingerprint(student),
        "batches": batches.fingerprint(),
    }

    def losses(step: int) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            for change in changes.values():
                change.write()
            inputs, outputs = layerwise(teacher, student, batches(step), targets)
        found, losses = {}, []
        for block, change in changes.items():
            x, y = (one[:, skipped:].flatten(0, 1) for one in (inputs[block], outputs[block]))
            made = change(x)
            half = 0.5 * (made - y).square().sum(-1).mean() / change.variance
            losses.append(half / change.steepness(x))
            found[f"block {block}"] = relative_error(made, y).detach()
        return {"loss": torch.stack(losses).sum(), **found}

    parameters = {
        f"{block}.{part}": parameter
        for block, change in changes.items()
        for part, parameter in change.parameters.items()
    }

    log = train(
        parameters,
        losses,
        recipe,
        seed=seed,
        folder=folder,
        every=every,
        identity=identity,
        description="distilling maps",
        progress=progress,
    )
    with torch.no_grad():
        for change in changes.values():
            change.write()
    return log


def distil(
    teacher: LanguageModel,
    student: Any,
    batches: Batches,
    *,
    kept: list[int] | None = None,
    logits: float = 1.0,
    hidden: float = 0.0,
    recipe: Recipe = WHOLE,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    every: int = 50,
    progress: bool | None = None,
) -> Log:
    """Train all parameters of a pruned model towards the original's predictions.

    "Your Transformer is Secretly Linear" (arXiv 2405.12250) §4. The loss is `logits` times the
    Kullback-Leibler divergence KL(teacher ‖ student) of the next token, in nats, mean over
    positions, plus `hidden` times the mean over the blocks left of the squared error of the
    stream behind them, over the variance of the original's behind the same block.

    Parameters
    ----------
    teacher : LanguageModel
        The original; untouched.
    student : transformers.PreTrainedModel
        What `remove` (or `replace`) returned; trained in place, in evaluation mode: no dropout.
    batches : Batches
    kept : list of int, optional
        Which of the original's blocks the student's are; needed for `hidden`.
    logits, hidden : float
        Weights of the two terms; one may be 0.
    recipe, seed, folder, every, progress
        As for `analysis.training.train`.

    Returns
    -------
    dict of str to (steps,) float64 array
        ``loss``, ``kl`` and ``hidden`` where they take part.

    Raises
    ------
    AnalysisError
        Weights that are negative or both 0; `kept` missing, or of another length.
    """
    own = len(blocks_of(student))
    if min(logits, hidden) < 0 or logits + hidden == 0:
        raise AnalysisError(f"logits={logits}, hidden={hidden}; one of the two must be positive")
    if hidden and (kept is None or len(kept) != own):
        raise AnalysisError(
            f"kept={kept}; hidden= needs the original block of each of the {own} blocks"
        )
    identity = {
        "what": "distil",
        "teacher": teacher.fingerprint(),
        "kept": kept,
        "student": weights_fingerprint(student),
        "logits": logits,
        "hidden": hidden,
        "batches": batches.fingerprint(),
    }
    parameters = dict(student.named_parameters())

    def losses(step: int) -> dict[str, torch.Tensor]:
        ids = batches(step)
        with teaching(teacher):
            aim, behind = run_blocks(teacher.model, teacher.blocks, ids, kept if hidden else [])
        made, left = run_blocks(student, blocks_of(student), ids, range(own) if hidden else [])
        found: dict[str, torch.Tensor] = {}
        if logits:
            found["kl"] = divergence(aim, made)
        if hidden:
            assert kept is not None
            found["hidden"] = torch.stack(
                [relative_error(left[n], behind[block]) for n, block in enumerate(kept)]
            ).mean()
        weights = {"kl": logits, "hidden": hidden}
        total = torch.stack([weights[name] * value for name, value in found.items()]).sum()
        return {"loss": total, **found}

    with all_trained(student):
        return train(
            parameters,
            losses,
            recipe,
            seed=seed,
            folder=folder,
            every=every,
            identity=identity,
            description="distilling",
            progress=progress,
        )


def divergence(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """KL(teacher ‖ student) in nats, mean over rows of (..., vocabulary) logits."""
    aim = teacher.flatten(0, -2).log_softmax(-1)
    made = student.flatten(0, -2).log_softmax(-1)
    return (aim.exp() * (aim - made)).sum(-1).mean()


def relative_error(made: torch.Tensor, aim: torch.Tensor) -> torch.Tensor:
    """Σ‖made − aim‖² over Σ‖aim − mean‖², of (..., width) rows."""
    made, aim = made.flatten(0, -2), aim.flatten(0, -2)
    return (made - aim).square().sum() / (aim - aim.mean(0)).square().sum()


def _skipped(first_token: str | int, context: int) -> int:
    """How many positions of a window are left out of the loss."""
    count = (
        {"keep": 0, "drop": 1}.get(first_token, -1) if isinstance(first_token, str) else first_token
    )
    if not 0 <= count < context:
        raise AnalysisError(
            f"first_token={first_token!r}: give 'keep', 'drop', or how many positions to drop"
        )
    return count
