"""Numbers in messages, with their nouns in the right number."""

from __future__ import annotations


def count(number: int, thing: str, none: str = "0") -> str:
    """``1 batch``, ``2,000 batches``; `none` is what stands for zero."""
    plural = thing + ("es" if thing.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{number:,} {thing if number == 1 else plural}" if number else f"{none} {plural}"
