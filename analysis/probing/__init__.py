"""What a linear probe reads off every layer: cross-validated accuracy, from the store alone.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §4 probes the layers of plain and of
regularised models; the control tasks follow Hewitt and Liang 2019 (arXiv 1909.03368).
"""

from analysis.probing.scoring import METHODS, RIDGES, accuracy, macro_f1

__all__ = ["METHODS", "RIDGES", "accuracy", "macro_f1"]
