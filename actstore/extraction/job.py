"""What is to be extracted: model, corpus, positions and sites, checked before anything is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from actstore.corpus import Corpus, Sampling, read_corpus
from actstore.errors import KeyMismatchError, ModelError, SamplingError
from actstore.models import LanguageModel, load_model
from actstore.store import Run, check_codec

STORED_DTYPES = ("float32", "float16", "bfloat16", "int8")
KEY_OF_A_MODEL = ("fingerprint", "tokenizer_fingerprint", "dtype", "attn_implementation", "causal")


@dataclass(frozen=True)
class Job:
    """One run's worth of work.

    Attributes
    ----------
    label : (str, str)
        Names of model and corpus in the store.
    wanted : dict of str to list of int
        Layers or blocks of each site.
    dtype : str
        As stored.
    key : dict
        What the rows follow from: same key, same content.
    info : dict
        What else is worth telling of where they came from.
    codec : str or None
        How chunks are stored; None where nobody asked: as the run has it, ``none`` if it is new.
    """

    model: LanguageModel
    corpus: Corpus
    sampling: Sampling
    label: tuple[str, str]
    wanted: dict[str, list[int]]
    dtype: str
    key: dict[str, Any]
    info: dict[str, Any]
    codec: str | None = None

    def is_done(self, run: Run) -> bool:
        """Whether a run, of the same key, has all that is wanted; KeyMismatchError where it is
        unfinished and was begun with other versions of the libraries."""
        if run.state == "complete" and all(
            set(layers) <= set(run.sites.get(site, ())) for site, layers in self.wanted.items()
        ):
            return True
        check_versions(run, self.info)
        return False


def make_job(
    model: Any,
    corpus: Any,
    *,
    sites: Sequence[str] | str,
    layers: Sequence[int] | int | slice | None,
    positions: Any,
    dtype: str,
    model_name: str | None,
    corpus_name: str | None,
    tokenizer: Any,
    sampling: dict[str, Any],
    codec: str | None = None,
) -> Job:
    """The job that the arguments of :func:`actstore.extract` describe."""
    chosen = _sampling(positions, sampling)
    if codec is not None:
        check_codec(codec)
    language_model = load_model(model, tokenizer=tokenizer, name=model_name)
    documents = read_corpus(corpus, name=corpus_name)
    about = language_model.describe()
    return Job(
        model=language_model,
        corpus=documents,
        sampling=chosen,
        label=(model_name or language_model.name, documents.name),
        wanted=language_model.resolve([sites] if isinstance(sites, str) else list(sites), layers),
        dtype=_stored_dtype(dtype, language_model),
        key={
            "model": model_key(about),
            "corpus": {"fingerprint": documents.fingerprint()},
            "sampling": chosen.to_dict(),
        },
        info={"model": about},
        codec=codec,
    )


def model_key(about: dict[str, Any]) -> dict[str, Any]:
    """What of a model's description decides its numbers."""
    return {name: about[name] for name in KEY_OF_A_MODEL}


def check_versions(run: Run, info: dict[str, Any]) -> None:
    """Rows of one run come from one version of the libraries that compute them."""
    before, now = run.info()["info"]["model"]["versions"], info["model"]["versions"]
    changed = [
        f"{name} {before.get(name)} → {now[name]}" for name in now if before.get(name) != now[name]
    ]
    if changed:
        raise KeyMismatchError(
            f"{run.name} is not whole and was begun with other versions ({', '.join(changed)}); "
            "finish it with those, or use another name (model_name=, corpus_name=)"
        )


def sampling_options() -> list[str]:
    """Fields of a Sampling that are given by name beside ``positions``."""
    return [field.name for field in fields(Sampling) if field.name != "positions"]


def _sampling(positions: Any, options: dict[str, Any]) -> Sampling:
    known = sampling_options()
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(
            f"extract() has no option {', '.join(unknown)}; sampling takes {', '.join(known)}"
        )
    if isinstance(positions, Sampling):
        if options:
            raise SamplingError(
                f"{', '.join(options)} given beside a Sampling; put them into the Sampling"
            )
        return positions
    return Sampling(positions=positions, **options)


def _stored_dtype(dtype: str, model: LanguageModel) -> str:
    if dtype == "auto":
        dtype = str(model.dtype).removeprefix("torch.")
    if dtype not in STORED_DTYPES:
        raise ModelError(f"dtype {dtype!r} cannot be stored; choose {', '.join(STORED_DTYPES)}")
    return dtype
