"""Bytes as people write them."""

from __future__ import annotations

import os
import re

from actstore.errors import GramError

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_size(size: int | str) -> int:
    """Bytes of ``4096``, ``"4GiB"``, ``"500 MB"``.

    Raises
    ------
    GramError
        Not a size.
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", str(size))
    if found is None or found[2].lower() not in UNITS:
        raise GramError(f"memory={size!r} is not a size; give bytes or a text such as '4GiB'")
    return int(float(found[1]) * UNITS[found[2].lower()])


def show_size(n: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} TiB"


def physical_memory() -> int | None:
    """Bytes of memory that the machine has; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
