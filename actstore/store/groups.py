"""A Zarr group's ``zarr.json``: always spelled the same way, and checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actstore.errors import CorruptionError, StoreVersionError

FORMAT = 1
"""Version of the on-disk format this code writes and reads."""


def group_bytes(attributes: Mapping[str, Any]) -> bytes:
    """A Zarr v3 group's ``zarr.json``, always spelled the same way."""
    content = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(content, indent=2).encode()


ROOT_GROUP = group_bytes({"actstore": {"format": FORMAT, "kind": "store"}})
PLAIN_GROUP = group_bytes({})


def parse_group(data: bytes, name: str) -> dict[str, Any]:
    """Attributes of a group's ``zarr.json``; CorruptionError where it is none."""
    try:
        content = json.loads(data)
        attributes = content["attributes"]
        if content["zarr_format"] != 3 or content["node_type"] != "group":
            raise ValueError
        if not isinstance(attributes, dict):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise CorruptionError(f"{name}: its zarr.json is not that of a Zarr v3 group") from None
    return attributes


def check_format(fields: object, name: str) -> None:
    """StoreVersionError unless a group's ``actstore`` attribute is of this format."""
    found = fields.get("format") if isinstance(fields, dict) else None
    if found != FORMAT:
        raise StoreVersionError(
            f"{name} has format {found!r}, and this version of actstore reads format {FORMAT}: "
            "use the version that wrote it, or extract again"
        )
