"""Every error that actstore raises on purpose.

Each class is also a subclass of the builtin that a caller would guess, so that
``except ValueError`` and ``except actstore.errors.CorpusError`` both work. A message
names the value, what was expected, and what to do.
"""

from __future__ import annotations


class ActstoreError(Exception):
    """Base of all errors raised on purpose; the command line prints it as one line."""


class ModelError(ActstoreError, ValueError):
    """A model cannot be loaded, or does not fit the request made of it."""


class UnsupportedModelError(ModelError):
    """The model's structure is not understood: a named check failed when it was loaded."""


class SiteError(ActstoreError, LookupError):
    """A site, layer or block that the model or the store does not have."""


class CorpusError(ActstoreError, ValueError):
    """The text cannot be read, is empty, or lacks what was asked of it."""


class SamplingError(ActstoreError, ValueError):
    """The choice of token positions is not possible on this model or text."""


class NonFiniteError(ActstoreError, ValueError):
    """NaN or infinity among activations; nothing of that shard was committed."""


class DtypeOverflowError(ActstoreError, OverflowError):
    """A finite activation that the stored dtype cannot hold."""


class StoreError(ActstoreError, OSError):
    """The store cannot be opened, read or written."""


class MissingStoreError(StoreError, FileNotFoundError):
    """There is no store at the place named."""


class MissingRunError(StoreError, KeyError):
    """The store has no run of that model and corpus."""


class StoreVersionError(StoreError):
    """The store was written by another version of the on-disk format."""


class ExistingRunError(StoreError, FileExistsError):
    """The store has a run of that name already."""


class IncompleteError(StoreError):
    """The run is only partly written, and the request needs all of it."""


class CorruptionError(StoreError):
    """Bytes on disk are missing or are not those that were written."""


class KeyMismatchError(StoreError):
    """A run of this name exists but was made from something else."""


class LockedError(StoreError):
    """Another process is writing this run."""


class SelectionError(ActstoreError, IndexError):
    """A selection that the run cannot satisfy."""


class GramError(ActstoreError, ValueError):
    """Gram statistics that cannot be combined, loaded or computed."""


class FitError(ActstoreError, ValueError):
    """A map that cannot be fitted, applied or loaded."""


class AnalysisError(ActstoreError, ValueError):
    """An analysis that the runs, maps or results at hand do not allow."""


class MissingDependencyError(ActstoreError, ImportError):
    """An optional package is needed; the message says which extra brings it."""
