"""A run's record: what its group's attributes say, and proof that nothing changed them.

The record is the commit of a run's plan. It is written last, after every coordinate is
durable; a folder without it is not a run.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from actstore.errors import CorruptionError, KeyMismatchError, StoreError, StoreVersionError
from actstore.store.backend import Backend
from actstore.store.codecs import CODECS, DEFAULT
from actstore.store.dtypes import StoredDtype, stored_dtype
from actstore.store.groups import FORMAT, check_format, group_bytes, parse_group
from actstore.store.layout import JOURNAL


class SiteLike(Protocol):
    """What the store needs to know of a site; a model's SiteSpec has it."""

    @property
    def dim(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def module(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Site:
    """A site as stored.

    Attributes
    ----------
    dim : str
        What its first axis counts: ``layer`` or ``block``.
    size, width : int
        Length of the first axis, features of a row.
    module : str
        The model's module it was taken from.
    axis, feature : str
        Dimension names on disk; those of `dim` and ``feature`` unless another site of the
        run has another length there.
    """

    dim: str
    size: int
    width: int
    module: str
    axis: str
    feature: str


@dataclass(frozen=True, slots=True)
class Content:
    """Proof of a coordinate array: how many chunks, and SHA-256 of its metadata and chunks."""

    chunks: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """Everything a run says of itself; immutable.

    Attributes
    ----------
    key : dict
        What the content follows from (fingerprints, sampling, dtype, …): same key, same rows.
    info : dict
        Provenance beyond the key.
    axes : dict
        Lengths that own the plain names ``layer``, ``block`` and ``feature``.
    sites : dict of str to Site
    requests : list of {site: layers}
        What was asked for, in order; each becomes visible as a whole.
    columns : list of str
        Sample coordinates, in order.
    content : dict of str to Content
        Proof of each coordinate array, by its key below the run's folder.
    metadata : dict of str to str
        SHA-256 of the metadata file of each array whose chunks come later.
    codec : str
        How chunks lie in their files; no part of what the rows follow from.
    """

    model: str
    corpus: str
    key: dict[str, Any]
    info: dict[str, Any]
    dtype: str
    n_samples: int
    n_sequences: int
    shard_rows: int
    axes: dict[str, int]
    columns: list[str]
    content: dict[str, Content]
    sites: dict[str, Site] = field(default_factory=dict)
    requests: list[dict[str, list[int]]] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    codec: str = DEFAULT

    @property
    def name(self) -> str:
        return f"{self.model}/{self.corpus}"

    @property
    def n_shards(self) -> int:
        return -(-self.n_samples // self.shard_rows)

    @property
    def stored(self) -> StoredDtype:
        return stored_dtype(self.dtype)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """First sample of a shard and the one after its last."""
        start = shard * self.shard_rows
        return start, min(start + self.shard_rows, self.n_samples)

    def wanted(self) -> dict[str, list[int]]:
        """Every (site, layers) that was ever asked for."""
        layers: dict[str, set[int]] = {site: set() for site in self.sites}
        for request in self.requests:
            for site, numbers in request.items():
                layers[site].update(numbers)
        return {site: sorted(numbers) for site, numbers in layers.items()}

    def identity(self) -> dict[str, Any]:
        """What fixes the rows whatever is extracted for them, and whatever the labels."""
        return {
            "format": FORMAT,
            "key": self.key,
            "dtype": self.dtype,
            "n_samples": self.n_samples,
            "shard_rows": self.shard_rows,
            "content": {k: c.sha256 for k, c in self.content.items() if k not in self.axes},
        }

    def key_differences(self, key: Mapping[str, Any], dtype: str) -> list[str]:
        """Entries in which another key differs from this run's, in words."""
        stored = {"dtype": self.dtype, **self.key}
        return _differences(stored, {"dtype": dtype, **as_json(key, "a run's key")}, "")

    def to_bytes(self) -> bytes:
        """The group's ``zarr.json``."""
        fields = {"format": FORMAT, "kind": "run", "n_shards": self.n_shards, **asdict(self)}
        # The labels are the folders' names: written here too, a renamed run would contradict them.
        del fields["model"], fields["corpus"]
        if self.codec == DEFAULT:
            del fields["codec"]
        attributes = {"actstore": fields, "coordinates": " ".join(self.columns)}
        fields["digest"] = digest(attributes)
        return group_bytes(attributes)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Record | None:
        """Record in the ``zarr.json`` of ``model/corpus``; None if the group holds no run.

        Raises
        ------
        CorruptionError
            The bytes are not those that were written.
        StoreVersionError
            Another version of the format, or a codec that this one does not know.
        """
        try:
            attributes = parse_group(data, name)
        except CorruptionError as error:
            raise CorruptionError(
                f"{error}: restore it from a copy, or remove the run and extract it again"
            ) from None
        fields = attributes.get("actstore")
        if fields is None:
            return None
        check_format(fields, name)
        told = fields.pop("digest", None)
        if told != digest(attributes):
            raise CorruptionError(
                f"{name}: the run's metadata (zarr.json) is not what was written; actstore repair "
                "may put it back, else restore it from a copy, or remove the run and extract again"
            )
        fields = {k: v for k, v in fields.items() if k not in ("format", "kind", "n_shards")}
        if fields.get("codec", DEFAULT) not in CODECS:
            raise StoreVersionError(
                f"{name} has codec {fields['codec']!r}, and this version of actstore reads "
                f"{', '.join(CODECS)}: use the version that wrote it, or extract again"
            )
        sites = {site: Site(**value) for site, value in fields.pop("sites").items()}
        content = {key: Content(**value) for key, value in fields.pop("content").items()}
        model, _, corpus = name.partition("/")
        record = cls(model=model, corpus=corpus, sites=sites, content=content, **fields)
        if record.to_bytes() != data:
            raise CorruptionError(
                f"{name}: the run's metadata (zarr.json) was written by something else; its "
                "content is whole, and actstore repair writes it again as it was"
            )
        return record


def load_record(backend: Backend, name: str) -> Record | None:
    """A run's record; None if there is no such run or only an unfinished plan.

    Raises
    ------
    CorruptionError
        It is not what was written; or another program has put its own in its place, as xarray's
        ``to_zarr`` does in a run's group, which shows by the shards that are committed.
    """
    data = backend.get(f"{name}/zarr.json")
    if data is None:
        return None
    record = Record.from_bytes(data, name)
    if record is None and _is_committed(backend, name):
        raise CorruptionError(
            f"{name}: another program has written over the run's metadata (zarr.json), which says "
            "what its committed shards are; they were not touched: restore that file from a copy, "
            "or remove the run with actstore rm and extract it again"
        )
    return record


def _is_committed(backend: Backend, name: str) -> bool:
    """Whether the journal of a run tells of any shard."""
    journal = f"{name}/{JOURNAL}"
    return any(
        file.startswith("c.")
        for site in backend.folders(journal)
        for file in backend.sizes(f"{journal}/{site}")
    )


def check_key(record: Record, key: Mapping[str, Any], dtype: str) -> None:
    """KeyMismatchError, saying which entries differ, unless a run was made from `key`."""
    differences = record.key_differences(key, dtype)
    if differences:
        more = len(differences) - 4
        shown = "; ".join(differences[:4]) + (f"; and {more} more" if more > 0 else "")
        raise KeyMismatchError(
            f"{record.name} exists, but was made from something else: {shown}. Use another name "
            "(model_name=, corpus_name=), or remove the run first"
        )


CHANGED = "has changed since it was opened: documents were added, or it was made anew"


def has_changed(backend: Backend, record: Record) -> bool:
    """Whether another record stands on the disk than the one that was read."""
    return backend.get(f"{record.name}/zarr.json") not in (None, record.to_bytes())


def digest(content: object) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def as_json(content: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`content` as JSON gives it back; StoreError for what JSON cannot say."""
    try:
        return json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"{what} must be plain JSON (str, int, float, bool, list, dict): {error}"
        ) from None


def shared_axes(sites: Mapping[str, SiteLike], known: Mapping[str, int]) -> dict[str, int]:
    """Lengths that may use the plain dimension names; those in `known` stay.

    The largest size among the sites of each dim, and the commonest width.
    """
    axes = dict(known)
    for dim in sorted({site.dim for site in sites.values()}):
        axes.setdefault(dim, max(site.size for site in sites.values() if site.dim == dim))
    if sites:
        widths = Counter(site.width for site in sites.values())
        axes.setdefault("feature", widths.most_common(1)[0][0])
    return axes


def site_of(name: str, spec: SiteLike, axes: Mapping[str, int]) -> Site:
    """How a site is stored beside the others."""
    return Site(
        dim=spec.dim,
        size=int(spec.size),
        width=int(spec.width),
        module=str(spec.module),
        axis=spec.dim if spec.size == axes[spec.dim] else f"{name}_{spec.dim}",
        feature="feature" if spec.width == axes["feature"] else f"{name}_feature",
    )


def _differences(stored: Any, asked: Any, path: str) -> list[str]:
    if isinstance(stored, dict) and isinstance(asked, dict):
        found = []
        for name in sorted({*stored, *asked}):
            at = f"{path}.{name}" if path else name
            found += _differences(stored.get(name), asked.get(name), at)
        return found
    if stored == asked:
        return []
    return [f"{path} is {_short(stored)}, asked for {_short(asked)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…" + text[-1]
