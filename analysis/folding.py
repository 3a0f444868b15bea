"""A span of blocks replaced by one linear map that disappears in the weights of the block before.

"ReplaceMe: Network Simplification via Depth Pruning and Transformer Block Linearization"
(Shopkhoev et al. 2025, arXiv 2505.02819, §3): training-free, in closed form from a Gram.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import nn

import actstore
from actstore.errors import AnalysisError
from actstore.fitting import LinearMap
from actstore.fitting.solving import spectrum
from actstore.grams import Gram, gram
from analysis import perplexity, pruning, results
from analysis.decoding import SITE
from analysis.feed_forward import last_matrix
from analysis.pruning.modules import blocks_of
from analysis.stats import Interval

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run

VARIANTS = ("removed", "folded")


def transformation(
    on: Run | Gram,
    blocks: Iterable[int],
    *,
    ridge: float = 0.0,
    intercept: bool = False,
    progress: bool | None = None,
) -> LinearMap:
    """The map T of what the block before a span adds by its feed-forward part.

    With blocks a…b−1 removed, m the output of block a−1's feed-forward part and y = h_a − m the
    stream before it, T = argmin Σ‖m T + y − h_b‖² (§3.2 of the paper). As h_b − y = m + (h_b −
    h_a), T = I + D with D = (MᵀM + αI)⁻¹ Mᵀ(H_b − H_a), least squares from second moments alone;
    of several solutions the one with the smallest D. The ridge draws T to the identity, which is
    plain removal.

    Parameters
    ----------
    on : Run or Gram
        With ``mlp`` of block a−1 and ``resid`` of layers a and b.
    blocks : iterable of int
        Consecutive, the first at least 1.
    ridge : float
        α ≥ 0.
    intercept : bool
        Also fit a bias, for models whose last feed-forward matrix has one.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    LinearMap
        From ("mlp", a−1); its result stands for h_b − y.

    Raises
    ------
    AnalysisError
        Blocks that are not consecutive or begin at 0, or a negative ridge.
    SiteError
        A site or layer that is not there.
    """
    start, stop = _span(blocks)
    if not ridge >= 0:
        raise AnalysisError(f"ridge={ridge!r}: α is a number ≥ 0")
    source, before, after = ("mlp", start - 1), (SITE, start), (SITE, stop)
    if isinstance(on, Gram):
        moments = on
    else:
        # One Gram takes the same layers of every site, and these two differ.
        view = on.sel(site=["mlp", SITE]).sel(block=start - 1).sel(layer=[start, stop])
        pairs = [(source, before), (source, after)]
        moments = gram(view, sites=["mlp", SITE], pairs=pairs, progress=progress)
    own = moments.cross(source, source, centred=intercept)
    change = moments.cross(source, after, centred=intercept)
    change -= moments.cross(source, before, centred=intercept)
    precise = moments.provenance["precision"] == "float64"
    basis = spectrum(own, float(np.finfo("float64" if precise else "float32").eps))
    solved = basis.vectors.T @ change / (basis.values + ridge)[:, None]
    matrix = basis.vectors @ solved
    bias = None
    if intercept:
        mean = moments.mean(source)
        bias = moments.mean(after) - moments.mean(before) - mean @ matrix
    freedom = basis.freedom(ridge) + intercept
    return LinearMap(
        source,
        after,
        np.eye(len(own)) + matrix,
        bias,
        basis.rank,
        basis.condition,
        "replace",
        freedom,
        ridge,
    )


def fold(
    model: LanguageModel,
    on: Run | Gram | LinearMap,
    blocks: Iterable[int],
    *,
    ridge: float = 0.0,
    intercept: bool = False,
    progress: bool | None = None,
) -> Any:
    """A copy of the model without a span of blocks, with T in the weights of the block before.

    The last matrix W of that block's feed-forward part becomes T after W, and its bias, where it
    has one, is mapped too: nothing is left of T but other numbers in the same places.

    Parameters
    ----------
    model : LanguageModel
        Of a family that `analysis.pruning.remove` takes, and whose feed-forward part ends in a
        linear map that is added to the stream as it is.
    on : Run, Gram or LinearMap
        As for `transformation`, or what it gave.
    blocks : iterable of int
        Consecutive, the first at least 1.
    ridge, intercept, progress
        As for `transformation`.

    Returns
    -------
    transformers.PreTrainedModel
        An ordinary model of the same class with fewer blocks, which saves, loads and generates as
        any other.

    Raises
    ------
    ModelError, AnalysisError, SiteError
        As for `remove` and `transformation`; a feed-forward part that does not end in a linear
        map; an intercept for a matrix without a bias.
    """
    chosen = list(blocks)
    start, _ = _span(chosen)
    if isinstance(on, LinearMap):
        linear = on
    else:
        linear = transformation(on, chosen, ridge=ridge, intercept=intercept, progress=progress)
    path = last_matrix(model, start - 1)
    made = pruning.remove(model, chosen)
    module: Any = blocks_of(made)[start - 1].get_submodule(path)
    if linear.bias is not None and module.bias is None:
        raise AnalysisError(
            f"{path} of {model.name} has no bias that an intercept could go into; fold without one"
        )
    weight = module.weight.detach().double().cpu()
    matrix = torch.tensor(linear.matrix)
    # nn.Linear keeps (out, in), the Conv1D of GPT-2 (in, out).
    folded = matrix.T @ weight if isinstance(module, nn.Linear) else weight @ matrix
    with torch.no_grad():
        module.weight.copy_(folded)
        if module.bias is not None:
            bias = module.bias.detach().double().cpu() @ matrix
            if linear.bias is not None:
                bias = bias + torch.tensor(linear.bias)
            module.bias.copy_(bias)
    return made


def compare(
    model: LanguageModel,
    on: Run,
    documents: Any,
    spans: Sequence[Iterable[int]],
    *,
    ridge: float = 0.0,
    intercept: bool = False,
    context: int = 1024,
    stride: int | None = None,
    bos: str = "tokenizer",
    cluster: str | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Perplexity of the model with spans of blocks removed, and with T folded in their place.

    Parameters
    ----------
    model : LanguageModel
        Causal, with a head.
    on : Run
        What T is fitted on, of other documents than those scored.
    documents : as for `analysis.perplexity.perplexity`
        Text that is scored.
    spans : sequence of iterables of int
        Each a span of consecutive blocks.
    ridge, intercept
        As for `transformation`.
    context, stride, bos, cluster
        As for `analysis.perplexity.perplexity`.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``perplexity`` (span, variant) of the variants removed and folded, ``ratio`` (span,
        variant) to the whole model's, paired by document, and ``whole``; each with ``_low`` and
        ``_high``, ends of 95% intervals. Coordinates ``start`` and ``blocks`` (span).

    Raises
    ------
    AnalysisError, ModelError, SiteError
        As for `fold` and `perplexity`.
    """
    ends = [_span(span) for span in spans]
    if not ends:
        raise AnalysisError("no spans of blocks given; one is range(20, 24)")
    options: dict[str, Any] = {
        "context": context,
        "stride": stride,
        "bos": bos,
        "cluster": cluster,
        "progress": progress,
    }
    texts = actstore.read_corpus(documents)
    whole = perplexity.perplexity(model, texts, **options)
    found = {
        name: np.full((3, len(ends), len(VARIANTS)), np.nan) for name in ("perplexity", "ratio")
    }
    for row, (start, stop) in enumerate(ends):
        chosen = range(start, stop)
        linear = transformation(on, chosen, ridge=ridge, intercept=intercept, progress=progress)
        for column, variant in enumerate(VARIANTS):
            made = pruning.remove(model, chosen)
            if variant == "folded":
                made = fold(model, linear, chosen)
            judged = actstore.load_model(made, tokenizer=model.tokenizer, name=model.name)
            scored = perplexity.perplexity(judged, texts, **options)
            paired = perplexity.compare(whole, scored)
            for end, suffix in enumerate(("", "_low", "_high")):
                found["perplexity"][end, row, column] = scored["perplexity" + suffix]
                found["ratio"][end, row, column] = paired["ratio" + suffix]
    dataset = xr.Dataset(
        coords={
            "span": [f"{start}…{stop - 1}" for start, stop in ends],
            "variant": list(VARIANTS),
            "start": ("span", [start for start, _ in ends]),
            "blocks": ("span", [stop - start for start, stop in ends]),
        }
    )
    for name, values in found.items():
        for suffix, one in zip(Interval._fields, values, strict=True):
            key = name if suffix == "value" else f"{name}_{suffix}"
            dataset[key] = (("span", "variant"), one, {"units": "1"})
    for suffix in ("", "_low", "_high"):
        dataset["whole" + suffix] = whole["perplexity" + suffix]
    dataset.attrs.update(
        tokens=whole.attrs["tokens"], context=context, level=whole.attrs["level"], ridge=ridge
    )
    record = results.provenance(
        "analysis.folding.compare",
        runs={"fitting": on},
        model=model,
        scored=results.read_provenance(whole),
        spans=[list(range(*end)) for end in ends],
        ridge=ridge,
        intercept=intercept,
    )
    return results.label(dataset, "folding", model.name, record)


def _span(blocks: Iterable[int]) -> tuple[int, int]:
    """First block, and the one after the last."""
    listed = sorted(int(block) for block in blocks)
    if not listed or listed != list(range(listed[0], listed[0] + len(listed))):
        raise AnalysisError(
            f"blocks {listed}: a span of consecutive blocks is folded, such as range(20, 24)"
        )
    if listed[0] < 1:
        raise AnalysisError(
            f"blocks {listed}: a block must stand before the span, so the first is at least 1"
        )
    return listed[0], listed[-1] + 1
