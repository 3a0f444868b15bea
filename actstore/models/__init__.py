"""A transformers model → its blocks, sites, final norm and head; capture and decoding."""

from actstore.models.families import Family, register_family
from actstore.models.language_model import LanguageModel
from actstore.models.loading import load_model
from actstore.models.sites import SiteSpec

__all__ = ["Family", "LanguageModel", "SiteSpec", "load_model", "register_family"]
