"""How parameters are trained: AdamW, its learning rate, and what is clipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from actstore.errors import AnalysisError

OPTIMISERS = ("adamw", "sgd")


@dataclass(frozen=True, slots=True)
class Recipe:
    """An optimiser whose rate warms up and falls to zero by a cosine.

    Attributes
    ----------
    steps : int
    learning_rate : float
        The highest, reached at the end of the warm-up.
    warmup : float
        Share of the steps in which the rate rises from zero.
    weight_decay : float
        On matrices; biases, norms and other vectors have none.
    betas : (float, float)
        Of AdamW.
    clip : float
        Largest norm of the gradient.
    optimiser : {"adamw", "sgd"}
        AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101), or plain gradient descent.
    """

    steps: int
    learning_rate: float = 1e-3
    warmup: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    optimiser: str = "adamw"

    def __post_init__(self) -> None:
        if self.steps < 0 or not self.learning_rate > 0 or not 0 <= self.warmup <= 1:
            raise AnalysisError(
                f"steps={self.steps}, learning_rate={self.learning_rate}, warmup={self.warmup}; "
                "expected steps ≥ 0, a positive rate, and a share of steps for the warm-up"
            )

        if self.optimiser not in OPTIMISERS:
            raise AnalysisError(f"optimiser={self.optimiser!r}; choose from {OPTIMISERS}")

    def rate(self, step: int) -> float:
        """The learning rate of a step, 0…steps−1."""
        warm = math.ceil(self.warmup * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        part = (step - warm) / max(1, self.steps - warm)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * part))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "warmup": self.warmup,
            "weight_decay": self.weight_decay,
            "betas": list(self.betas),
            "clip": str(self.clip),
            "optimiser": self.optimiser,
        }


def optimiser_of(
    parameters: Mapping[str, torch.nn.Parameter], recipe: Recipe
) -> torch.optim.Optimizer:
    """The optimiser of a recipe; only matrices are decayed."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    given = [group for group in groups if group["params"]]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(given, lr=recipe.learning_rate, foreach=False)
    return torch.optim.AdamW(
        given,
        lr=recipe.learning_rate,
        betas=recipe.betas,
        foreach=False,
    )
