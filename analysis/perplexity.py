"""Perplexity of a causal model on text, with what each token was allowed to see.

exp of the mean surprisal per token. A number without its context length and stride says little:
SmolLM2's perplexity on the same text is three times lower with 1,024 tokens of context than
with a sentence. Both are parameters here, and part of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from actstore.corpus import Document, read_corpus
from actstore.corpus.documents import document_id
from actstore.errors import AnalysisError
from analysis import results
from analysis.scored_windows import scored, windows_of
from analysis.stats import Interval

if TYPE_CHECKING:
    from actstore.models import LanguageModel

BOUNDARIES = ("documents", "concatenated")
BATCH_TOKENS = 2048
LEVEL = 0.95


def perplexity(
    model: LanguageModel,
    documents: Any,
    *,
    context: int = 1024,
    stride: int | None = None,
    boundaries: str = "documents",
    bos: str = "tokenizer",
    cluster: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
    level: float = LEVEL,
    progress: bool | None = None,
) -> xr.Dataset:
    """Perplexity by overlapping windows that score every token of text once.

    A window holds `context` tokens, and the next begins `stride` tokens further. A token is
    scored in the first window that it is in, so that after a text's first window each is
    predicted from at least ``context − stride`` tokens before it.

    Parameters
    ----------
    model : LanguageModel
        Causal, with a head.
    documents : str, path, Corpus, or iterable of str or Document
        As for `actstore.read_corpus`. ``input_ids`` are taken as they are, with no prefix.
    context : int
        Tokens of a window, those of the prefix included.
    stride : int, optional
        Default: half of `context`. At most the text that a window holds, less one token where
        there is no prefix.
    boundaries : {"documents", "concatenated"}
        "documents": windows end at the end of a document, and the document's prefix stands in
        front of each of its windows. "concatenated": all documents, each behind its prefix, are
        one long text that the windows run through; a document's first tokens then see the end of
        the one before.
    bos : str
        What stands before a text: ``"tokenizer"``, ``"none"``, or a token, as for
        `actstore.extract`. Without any, a text's first token has nothing to be predicted from and
        is not scored.
    cluster : str, optional
        Metadata whose equal values mark dependent documents; default: each is independent.
    batch_tokens : int
        Tokens of one forward pass, padding included.
    level : float
        Coverage of the intervals.
    progress : bool, optional

    Returns
    -------
    xarray.Dataset
        ``nll`` (nats per token) and ``perplexity``, each with ``_low`` and ``_high``:
        cluster-robust Student t over documents, of the mean and its exponential. By
        ``document``: ``document_nll`` (nats, summed), ``document_tokens`` (scored), and the
        coordinate ``cluster``. ``attrs`` has ``context``, ``stride``, ``boundaries``,
        ``least_context``, ``tokens``. Special tokens are never scored.

    Raises
    ------
    AnalysisError
        A model that is not causal or has no head; a context, stride or boundaries that cannot
        be; no token to score.
    NonFiniteError
        The model gives logits that are NaN or infinite.
    """
    stride = max(1, context // 2) if stride is None else stride
    _check(model, context, stride, boundaries)
    texts = list(read_corpus(documents))
    clusters = [_cluster(text, number, cluster) for number, text in enumerate(texts)]
    windows = list(windows_of(model, texts, context, stride, boundaries, bos))
    sums, counts = scored(model, windows, len(texts), batch_tokens, progress)
    mean = ratio(sums, counts, clusters, level=level)
    dataset = xr.Dataset(
        {
            "document_nll": ("document", sums, {"units": "nats"}),
            "document_tokens": ("document", counts),
        },
        coords={
            "document": [document_id(text, number) for number, text in enumerate(texts)],
            "cluster": ("document", clusters),
        },
    )
    for end, value in zip(("", "_low", "_high"), mean, strict=True):
        dataset["nll" + end] = ((), value, {"units": "nats"})
        dataset["perplexity" + end] = ((), np.exp(value))
    choices: dict[str, Any] = {
        "context": context,
        "stride": stride,
        "boundaries": boundaries,
        "bos": bos,
    }
    dataset.attrs.update(
        choices,
        least_context=context - stride,
        tokens=int(counts.sum()),
        documents=len(texts),
        clusters=len(set(clusters)),
        level=level,
    )
    record = results.provenance(
        "analysis.perplexity.perplexity",
        model=model,
        documents=read_corpus(texts).fingerprint(),
        cluster=cluster,
        **choices,
    )
    return results.label(dataset, "perplexity", model.name, record)


def compare(first: xr.Dataset, second: xr.Dataset, *, level: float = LEVEL) -> xr.Dataset:
    """How many times the second perplexity is the first, paired by document.

    Parameters
    ----------
    first, second : xarray.Dataset
        What `perplexity` returned for the same documents, tokens, context and stride.

    Returns
    -------
    xarray.Dataset
        ``nll_difference`` (nats per token, second − first) and ``ratio`` (its exponential), with
        ``_low`` and ``_high``. The documents' own difficulty, which both share, cancels.

    Raises
    ------
    AnalysisError
        The two are not of the same tokens under the same conditions.
    """
    for name in ("context", "stride", "boundaries", "bos"):
        if first.attrs[name] != second.attrs[name]:
            raise AnalysisError(
                f"{name} is {first.attrs[name]!r} in one and {second.attrs[name]!r} in the other; "
                "perplexities are compared under equal conditions"
            )
    if not first.document_tokens.equals(second.document_tokens):
        raise AnalysisError("the two are not of the same documents and tokens; score one text")
    difference = second.document_nll.values - first.document_nll.values
    found = ratio(difference, first.document_tokens.values, first.cluster.values, level=level)
    dataset = xr.Dataset()
    for end, value in zip(("", "_low", "_high"), found, strict=True):
        dataset["nll_difference" + end] = ((), value, {"units": "nats"})
        dataset["ratio" + end] = ((), np.exp(value))
    return dataset.assign_attrs(level=level, context=first.attrs["context"])


def ratio(
    sums: ArrayLike, counts: ArrayLike, clusters: ArrayLike, *, level: float = LEVEL
) -> Interval:
    """Mean per token out of sums per document, with a cluster-robust Student t interval.

    The same as `analysis.stats.mean` of all tokens: what that needs of a cluster is
    Σ(x − x̄) = S − n x̄.

    Parameters
    ----------
    sums : (..., documents) array
    counts : (documents,) array
        Tokens in each sum.
    clusters : (documents,) array
        Labels of what is dependent.

    Returns
    -------
    Interval
        Ends are NaN with one cluster. Documents without tokens say nothing.
    """
    totals, sizes = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    some = sizes > 0
    totals, sizes = totals[..., some], sizes[some]
    _, codes = np.unique(np.asarray(clusters)[some], return_inverse=True)
    groups = int(codes.max()) + 1
    n = sizes.sum()
    centre = totals.sum(axis=-1) / n
    if groups == 1:
        return Interval(centre, np.full_like(centre, np.nan), np.full_like(centre, np.nan))
    apart = totals - centre[..., None] * sizes
    by_group = np.stack([apart[..., codes == g].sum(axis=-1) for g in range(groups)], axis=-1)
    error = np.sqrt(groups / (groups - 1) * (by_group**2).sum(axis=-1)) / n
    spread = float(student_t.ppf((1 + level) / 2, groups - 1)) * error
    return Interval(centre, centre - spread, centre + spread)


def _cluster(document: Document, number: int, key: str | None) -> str:
    if key is None:
        return document_id(document, number)
    value = document.metadata.get(key)
    if value is None:
        raise AnalysisError(
            f"cluster={key!r} asked for, but document {document_id(document, number)} has no such "
            f"label; it has {', '.join(document.metadata) or 'none'}"
        )
    return str(value)


def _check(model: LanguageModel, context: int, stride: int, boundaries: str) -> None:
    if not model.causal or not model.has_head:
        lacks = "has no language-model head" if model.causal else "is not causal"
        raise AnalysisError(f"{model.name} {lacks}, so that it has no perplexity")
    if boundaries not in BOUNDARIES:
        raise AnalysisError(f"boundaries={boundaries!r}; choose from {BOUNDARIES}")
    if context < 2 or not 1 <= stride <= context:
        raise AnalysisError(
            f"context={context}, stride={stride}; expected context ≥ 2 and 1 ≤ stride ≤ context"
        )
    if model.max_length is not None and context > model.max_length:
        raise AnalysisError(
            f"context={context} asked for, but {model.name} has {model.max_length} positions"
        )
