"""Small decoders trained from scratch, with and without a term that holds layers together.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §5: `train` one, or `compare` plain and
regularised ones over several seeds.
"""

from analysis.pretraining.comparing import ARMS, compare
from analysis.pretraining.regulariser import REGULARISERS
from analysis.pretraining.tokenizer import train_tokenizer
from analysis.pretraining.training import RECIPE, Trained, train

__all__ = [
    "ARMS",
    "RECIPE",
    "REGULARISERS",
    "Trained",
    "compare",
    "train",
    "train_tokenizer",
]
