"""A small training loop that can stop anywhere and go on.

What a step sees is drawn from (seed, step) alone, and all that lives from one step to the next is
in a checkpoint: weights, AdamW's moments and the log. A run that was killed and called again ends
with the same bits as one that was not (on the same machine, with as many threads).
"""

from analysis.training.loop import train
from analysis.training.recipe import Recipe
from analysis.training.saving import save_model
from analysis.training.text import Batches, token_stream

__all__ = ["Batches", "Recipe", "save_model", "token_stream", "train"]
