"""How linear a model is from layer to layer: scores of whole layers, errors of single tokens.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §3.
"""

from analysis.linearity.scoring import replicates, scores, transitions
from analysis.linearity.token_errors import errors

__all__ = ["errors", "replicates", "scores", "transitions"]
