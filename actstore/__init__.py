"""actstore: a labelled, resumable on-disk store of transformer activations.

Names are imported on first use, so that opening and querying a store loads neither
torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actstore.corpus import Corpus, Document, read_corpus
    from actstore.extraction import extract, gram, plan_extraction, plan_gram, repair
    from actstore.fitting import LinearMap, MapSet, fit, load_maps
    from actstore.grams import Gram
    from actstore.models import Family, LanguageModel, load_model, register_family
    from actstore.store import Run, Store, open

__version__ = "0.1.0"

_HOME = {
    "Corpus": "actstore.corpus",
    "Document": "actstore.corpus",
    "Family": "actstore.models",
    "Gram": "actstore.grams",
    "LanguageModel": "actstore.models",
    "LinearMap": "actstore.fitting",
    "MapSet": "actstore.fitting",
    "Run": "actstore.store",
    "Store": "actstore.store",
    "extract": "actstore.extraction",
    "fit": "actstore.fitting",
    "gram": "actstore.extraction",
    "load_maps": "actstore.fitting",
    "load_model": "actstore.models",
    "open": "actstore.store",
    "plan_extraction": "actstore.extraction",
    "plan_gram": "actstore.extraction",
    "read_corpus": "actstore.corpus",
    "repair": "actstore.extraction",
    "register_family": "actstore.models",
}

__all__ = [
    "Corpus",
    "Document",
    "Family",
    "Gram",
    "LanguageModel",
    "LinearMap",
    "MapSet",
    "Run",
    "Store",
    "extract",
    "fit",
    "gram",
    "load_maps",
    "load_model",
    "open",
    "plan_extraction",
    "plan_gram",
    "read_corpus",
    "register_family",
    "repair",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'actstore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
