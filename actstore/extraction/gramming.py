"""`gram` of a stored run, or of a model and a corpus without storing a single activation."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from actstore import grams
from actstore.errors import GramError
from actstore.grams import Gram, Plan

SHARED = ("sites", "layers")
OF_A_CLUSTER = "client"


def gram(source: Any, corpus: Any = None, **options: Any) -> Gram:
    """Sufficient statistics of every pair of layers, of a run or straight from the forward pass.

    ``gram(run)`` reads the rows of a store; ``gram(model, corpus)`` makes the same rows in the
    forward pass, adds them up as they come, and keeps none: equal to extracting and then reading.
    Both go over the rows once.

    Parameters
    ----------
    source : Run, or model as for :func:`actstore.extract`
        Anything with a Run's ``row_blocks`` and ``read`` is taken as a run.
    corpus : corpus as for :func:`actstore.extract`
        Only with a model.
    sites, layers
        What the columns are; of a run as for :func:`actstore.grams.gram`, of a model as for
        :func:`actstore.extract`.
    **options
        Those of :func:`actstore.grams.gram`: ``precision``, ``memory``, ``parts``, ``progress``
        and so on; and with a model those of
        :func:`actstore.extraction.streaming.forward_rows`, too: ``positions``, ``dtype``,
        ``tokenizer``, ``batch_tokens``, ``seed``, ``bos``, and

        * ``folder``: where the Gram is kept, as a store keeps it beside a run: the same call again
          runs no model, and an interrupted one goes on from its last checkpoint;
        * ``passes``: how often the model may go over the corpus, 1 by default. A Gram that takes
          more memory than ``memory`` allows is made in several passes, with a ``folder`` for the
          tiles, and is refused where they are more than this; `plan_gram` tells how many.

    Returns
    -------
    Gram

    Raises
    ------
    TypeError
        An option that there is not, or not for this source.
    SiteError, GramError, NonFiniteError, CorruptionError
        As from :func:`actstore.grams.gram`.
    ModelError, CorpusError, SamplingError, DtypeOverflowError
        As from extraction.

    Examples
    --------
    >>> actstore.gram("openai-community/gpt2", "wiki.txt", positions="all")  # doctest: +SKIP
    """
    if _is_run(source, corpus):
        return grams.gram(source, **_of_a_run(options, grams.gram))
    from actstore.extraction.streaming import forward_rows

    making, adding = _divided(options, grams.gram, forward_rows)
    with forward_rows(source, corpus, **making) as rows:
        found = grams.gram(rows, sites=tuple(rows.sites), **adding)
        for one in (found, *found.parts):
            one.run = None
        return found


def plan_gram(source: Any, corpus: Any = None, **options: Any) -> Plan:
    """What `gram` with these arguments would do where nothing is kept yet; no row is made or read.

    The passes of a plan for a model are forward passes over the whole corpus.

    Parameters
    ----------
    source, corpus, **options
        As for `gram`, without ``progress`` and ``client``; ``workers`` as for
        :func:`actstore.grams.plan_gram`.

    Returns
    -------
    Plan
    """
    if _is_run(source, corpus):
        return grams.plan_gram(source, **_of_a_run(options, grams.plan_gram))
    from actstore.extraction.streaming import forward_rows

    making, adding = _divided(options, grams.plan_gram, forward_rows)
    with forward_rows(source, corpus, **making) as rows:
        return grams.plan_gram(rows, sites=tuple(rows.sites), **adding)


def _is_run(source: Any, corpus: Any) -> bool:
    """Whether rows are there to be read; GramError for what is neither one thing nor the other."""
    if hasattr(source, "row_blocks"):
        if corpus is not None:
            raise GramError(f"{source!r} has its corpus: leave corpus= out, or give the model")
        return True
    if isinstance(source, Gram):
        raise GramError(f"{source!r} is a Gram already")
    if corpus is None:
        raise GramError(
            f"a {type(source).__name__} is no run: give a Run, or a model and its corpus, as in "
            "gram('openai-community/gpt2', 'wiki.txt')"
        )
    return False


def _of_a_run(options: dict[str, Any], call: Any) -> dict[str, Any]:
    known = [name for name in signature(call).parameters if name != "run"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(
            f"{call.__name__}() of a run has no option {', '.join(unknown)}; it takes "
            f"{', '.join(known)}, and others with a model and a corpus"
        )
    return options


def _divided(
    options: Mapping[str, Any], adding: Any, making: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the forward pass, and options of the Gram."""
    from actstore.extraction.job import sampling_options

    forward = [name for name in signature(making).parameters if name not in ("model", "corpus")]
    forward = [name for name in forward if name != "sampling"] + sampling_options()
    rest = [n for n in signature(adding).parameters if n not in ("run", OF_A_CLUSTER, *SHARED)]
    if OF_A_CLUSTER in options:
        raise GramError(
            "client= goes with a stored run: extract on the cluster first, "
            "extract(..., client=client), and then gram(run, client=client)"
        )
    unknown = sorted(set(options) - set(forward) - set(rest))
    if unknown:
        raise TypeError(
            f"{adding.__name__}() of a model has no option {', '.join(unknown)}; it takes "
            f"{', '.join([*forward, *rest])}"
        )
    return (
        {name: value for name, value in options.items() if name in forward},
        {name: value for name, value in options.items() if name in rest},
    )
