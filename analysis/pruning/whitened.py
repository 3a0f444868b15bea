"""A linear block trained by gradient descent in coordinates where every direction is as steep."""

from __future__ import annotations

import math

import torch

from analysis.pruning.modules import LinearBlock

_LEAST = 0.01  # of the median eigenvalue, added to all


class Change:
    """What is added to a map as it is trained: x ↦ ((x − μ) W) δ + β, with (x − μ) W white.

    Parameters
    ----------
    block : LinearBlock
    inputs, outputs : (rows, width) tensors
        What a whitening and the target's variance are taken from.
    """

    def __init__(self, block: LinearBlock, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        linear = self._linear = block.linear
        self._weight = linear.weight.detach().clone()
        self._bias = None if linear.bias is None else linear.bias.detach().clone()
        x = inputs.double()
        # without a bias nothing may be added to what is not there
        mean = x.mean(0) if self._bias is not None else torch.zeros_like(x[0])
        moments = (x - mean).T @ (x - mean) / len(x)
        values, vectors = torch.linalg.eigh(moments)
        # directions that a few thousand rows hardly show are not blown up
        floor = _LEAST * values.median().clamp_min(1e-12 * float(values.max()))
        white = vectors * (values.clamp_min(0) + floor).rsqrt()
        dtype = self._weight.dtype
        self._mean, self._white = mean.to(dtype), white.to(dtype)
        self.variance = float((outputs - outputs.mean(0)).square().sum(-1).mean())
        size = math.sqrt(self.variance)
        width = len(white)
        self._size = size
        self.parameters = {"weight": torch.nn.Parameter(torch.zeros(width, width, dtype=dtype))}
        if self._bias is not None:
            self.parameters["bias"] = torch.nn.Parameter(torch.zeros(width, dtype=dtype))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.nn.functional.linear(x, self._weight, self._bias)
        added = ((x - self._mean) @ self._white) @ self.parameters["weight"]
        if "bias" in self.parameters:
            added = added + self.parameters["bias"]
        return before + self._size * added

    def steepness(self, x: torch.Tensor) -> float:
        """Largest eigenvalue of the whitened inputs' moments in a batch, at least 1.

        By power iteration: close where one token stands out, a little low where none does.
        """
        white = (x - self._mean) @ self._white
        # from the longest row, which is near the direction that matters
        direction = white[int(white.square().sum(-1).argmax())]
        value = 0.0
        for _ in range(8):
            direction = direction / direction.norm().clamp_min(1e-30)
            along = white @ direction
            value = float(along.square().sum()) / len(white)
            direction = white.T @ along
        return max(1.0, value)

    def write(self) -> None:
        """Put what was trained into the model."""
        added = self._size * (self._white @ self.parameters["weight"])
        self._linear.weight.copy_(self._weight + added.T)
        if self._bias is not None:
            bias = self._size * self.parameters["bias"] - self._mean @ added
            self._linear.bias.copy_(self._bias + bias)
