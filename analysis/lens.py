"""An affine map to the last layer while it is trained, and its loss."""

from __future__ import annotations

import dataclasses
from math import nan
from typing import TYPE_CHECKING

import numpy as np
import torch

from actstore.fitting import LinearMap
from actstore.grams import Gram
from analysis.decoding import SITE

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run

FLOOR = 1e-3  # of the mean variance, added to each direction's before it is made white


class Lens(torch.nn.Module):
    """h ↦ h A + b + s ((h − μ) W δ + β), δ and β trained, (h − μ) W white, s the target's scale."""

    def __init__(self, start: LinearMap, moments: Gram) -> None:
        super().__init__()
        self._start = start
        values, vectors = np.linalg.eigh(moments.cross(start.source, start.source, centred=True))
        values = np.maximum(values, 0) / moments.n
        self._mean = moments.mean(start.source)
        self._white = vectors / np.sqrt(values + FLOOR * values.mean())
        self._scale = float(np.sqrt(moments.variance(start.target).mean() / moments.n))
        width = start.matrix.shape[1]
        self.delta = torch.nn.Parameter(torch.zeros(len(values), width))
        self.shift = torch.nn.Parameter(torch.zeros(width))
        self._kept = self._weights()
        self._matrix = torch.tensor(start.matrix, dtype=torch.float32)
        self._bias = torch.tensor(start.bias, dtype=torch.float32)
        self._centre = torch.tensor(self._mean, dtype=torch.float32)
        self._whiten = torch.tensor(self._scale * self._white, dtype=torch.float32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        change = (hidden - self._centre) @ self._whiten @ self.delta + self._scale * self.shift
        return hidden @ self._matrix + self._bias + change

    def keep(self) -> None:
        """Take the weights as they are now for the map."""
        self._kept = self._weights()

    def linear_map(self) -> LinearMap:
        """The weights kept, as one map."""
        delta, shift = self._kept
        change = self._scale * self._white @ delta
        bias = self._start.bias - self._mean @ change + self._scale * shift
        matrix = self._start.matrix + change
        if not delta.any() and not shift.any():
            return dataclasses.replace(self._start, method=f"{self._start.method}, kept by tuning")
        return dataclasses.replace(
            self._start,
            matrix=matrix,
            bias=bias,
            condition=nan,
            method="tuned",
            degrees_of_freedom=nan,
            _cast={},
        )

    def _weights(self) -> tuple[np.ndarray, np.ndarray]:
        return (
            self.delta.detach().numpy().astype(np.float64),
            self.shift.detach().numpy().astype(np.float64),
        )


def divergence(aim: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL in nats, mean over rows; `aim` holds ln p."""
    made = logits.float().log_softmax(-1)
    return (aim.exp() * (aim - made)).sum(-1).mean()


def mean_divergence(
    lenses: dict[int, Lens], run: Run, model: LanguageModel, batch_size: int
) -> dict[int, float]:
    """Mean KL of each layer's lens on all samples of a run."""
    total = dict.fromkeys(lenses, 0.0)
    with model.exclusive(), torch.no_grad():
        for batch in run.to_torch(SITE, batch_size=batch_size, shuffle=False):
            states = dict(zip(batch["layer"].tolist(), batch["activations"].float(), strict=True))
            last = states[model.n_blocks]
            aim = model.logits(last).float().log_softmax(-1)
            for layer, lens in lenses.items():
                own = divergence(aim, model.logits(lens(states[layer])))
                total[layer] += float(own) * len(last)
    return {layer: value / run.n_samples for layer, value in total.items()}
