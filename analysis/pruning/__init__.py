"""Taking blocks out of a model, or putting linear maps in their place.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §4. Blocks are ranked (`rank_blocks`),
taken out (`remove`) or replaced by maps fitted on states at all positions (`states`, `fit_maps`,
`replace`); what is left is distilled (`distil_maps`, `distil`); `curves` does all of it and
measures perplexity. Results are ordinary transformers models; importing this package lets
``AutoModelForCausalLM`` load those with linear blocks.
"""

from analysis.pruning.curves import compare_variants, curves
from analysis.pruning.distilling import distil, distil_maps
from analysis.pruning.modules import FAMILIES, LinearBlock, linear_blocks
from analysis.pruning.ranking import CRITERIA, Ranking, rank_blocks, states
from analysis.pruning.replacing import fit_maps
from analysis.pruning.surgery import remove, replace
from analysis.pruning.variants import VARIANTS

__all__ = [
    "CRITERIA",
    "FAMILIES",
    "VARIANTS",
    "LinearBlock",
    "Ranking",
    "compare_variants",
    "curves",
    "distil",
    "distil_maps",
    "fit_maps",
    "linear_blocks",
    "rank_blocks",
    "remove",
    "replace",
    "states",
]
