"""Terms of the loss that hold successive layers' states together.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §5: λ Σ_i (1 − cos(emb_i, emb_{i−1}))
over the stream's layers i = 1…L, mean over tokens, or λ Σ_i ‖emb_i − emb_{i−1}‖².
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from actstore.errors import AnalysisError
from actstore.models.running import hooked
from actstore.models.tensors import hidden_input, hidden_output

REGULARISERS = ("cosine", "mse")


def term(states: Sequence[torch.Tensor], kind: str) -> torch.Tensor:
    """Σ over successive layers of the mean over tokens, without its factor λ.

    Parameters
    ----------
    states : sequence of (batch, time, width) tensors
        The stream's layers 0…L, before the final norm.
    kind : {"cosine", "mse"}
        1 − cos, or the squared distance summed over features.
    """
    if kind == "cosine":
        parts = [
            (1 - torch.nn.functional.cosine_similarity(after, before, dim=-1)).mean()
            for before, after in pairwise(states)
        ]
    elif kind == "mse":
        parts = [(after - before).square().sum(-1).mean() for before, after in pairwise(states)]
    else:
        raise AnalysisError(f"regulariser={kind!r}; choose from {REGULARISERS}, or None")
    return torch.stack(parts).sum()


def run_with_states(
    model: Any, blocks: Sequence[Any], ids: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of a forward pass and the stream's layers 0…L, in one graph."""
    states: list[torch.Tensor] = []

    def before(module: Any, args: Any, kwargs: Any) -> None:
        entered = hidden_input(args, kwargs)
        assert entered is not None
        states.append(entered)

    def after(module: Any, args: Any, output: Any) -> None:
        left = hidden_output(output)
        assert left is not None
        states.append(left)

    first = blocks[0].register_forward_pre_hook(before, with_kwargs=True)
    with hooked(first, *(block.register_forward_hook(after) for block in blocks)):
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits, states
