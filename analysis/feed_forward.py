"""Where the feed-forward part of a block ends: the matrix whose output joins the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from actstore.errors import AnalysisError

if TYPE_CHECKING:
    from actstore.models import LanguageModel


def last_matrix(model: LanguageModel, block: int) -> str:
    """Path, inside a block, of the linear module whose output is what ``mlp`` adds to the stream.

    Found by trial: its output on a few ids is compared with the site's.

    Raises
    ------
    AnalysisError
        There is none: experts, or a norm between it and the stream.
    """
    if "mlp" not in model.sites:
        raise AnalysisError(
            f"{model.name} has no site 'mlp' to fold into: {model.refused.get('mlp', 'not known')}"
        )
    from transformers.pytorch_utils import Conv1D

    ids = np.arange(5, 13) % model.vocab_size
    seen: dict[str, torch.Tensor] = {}

    def look(path: str) -> Any:
        return lambda module, args, output: seen.__setitem__(path, output.detach())

    handles = [
        module.register_forward_hook(look(path))
        for path, module in model.blocks[block].named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    ]
    try:
        added = model.capture([ids], [np.arange(len(ids))], {"mlp": [block]})["mlp"][0]
    finally:
        for handle in handles:
            handle.remove()
    scale = model.inner["mlp"].scale
    for path, output in reversed(seen.items()):
        rows = output.float().cpu().numpy().reshape(-1, output.shape[-1]) * scale
        if rows.shape == added.shape and np.allclose(rows, added, rtol=1e-3, atol=1e-5):
            return path
    raise AnalysisError(
        f"block {block} of {model.name}: no linear module gives what 'mlp' adds to the stream, so "
        "nothing can be folded into it; analysis.pruning.replace puts a linear block there instead"
    )
