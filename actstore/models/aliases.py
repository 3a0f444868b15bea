"""Names that other tools give to the same places, as data.

``{block}`` stands for a block's number, which counts from the end where it is negative, and
which may be ``*`` (or left out with its prefix: ``hook_resid_post``) for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alias:
    """One more name of a site.

    Attributes
    ----------
    name : str
    site : str
        The site, or another name of it.
    shift : int
        What is added to the block's number: the output of block b is layer b + 1 of ``resid``.
    post_norm : str or None
        What the name means where each sum is normed behind the sub-layer (BERT), if that is
        another site; "" where it is none.
    """

    name: str
    site: str
    shift: int = 0
    post_norm: str | None = None


_TRANSFORMER_LENS = (
    Alias("hook_embed", "embed"),
    Alias("blocks.{block}.hook_resid_pre", "resid"),
    Alias("blocks.{block}.hook_attn_out", "attn", post_norm="attn.out"),
    Alias("blocks.{block}.hook_resid_mid", "resid_mid", post_norm=""),
    Alias("blocks.{block}.hook_mlp_in", "resid_mid", post_norm=""),
    Alias("blocks.{block}.hook_mlp_out", "mlp", post_norm="mlp.out"),
    # there the sum before the block's last norm, which is no site here
    Alias("blocks.{block}.hook_resid_post", "resid", 1, post_norm=""),
    Alias("blocks.{block}.hook_normalized_resid_mid", "", post_norm="mlp.in"),
    Alias("blocks.{block}.hook_normalized_resid_post", "", 1, post_norm="resid"),
    Alias("blocks.{block}.ln1.hook_normalized", "ln1", post_norm=""),
    Alias("blocks.{block}.ln2.hook_normalized", "ln2", post_norm=""),
    Alias("ln_final.hook_normalized", "final_norm"),
)
"""TransformerLens, ``HookedTransformer`` (and ``HookedEncoder`` for post-norm models)."""

_NNTERP = (
    Alias("token_embeddings", "embed"),
    Alias("layers_input[{block}]", "resid"),
    Alias("layers_output[{block}]", "resid", 1),
    Alias("attentions_input[{block}]", "attn.in"),
    Alias("attentions_output[{block}]", "attn.out"),
    Alias("mlps_input[{block}]", "mlp.in"),
    Alias("mlps_output[{block}]", "mlp.out"),
    Alias("ln_final", "final_norm"),
)
"""nnterp, ``StandardizedTransformer``."""

_PAPERS = (
    Alias("resid_pre[{block}]", "resid"),
    Alias("resid_post[{block}]", "resid", 1),
)

ALIASES = _TRANSFORMER_LENS + _NNTERP + _PAPERS
