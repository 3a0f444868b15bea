"""Antibody light chains for the masked model, joined from the germline genes of six animals.

A light chain is encoded by a V and a J gene that are joined directly. Every V gene is joined here
to every J gene of its kind and animal, as they stand in the germline: the sequence of a naive
chain but for what the joining cuts off or adds. They are constructed, not observed. The genes
are those that the package ``anarci`` carries (BSD-3-Clause; the sequences are IMGT's).

``python -m examples.germlines`` writes both kinds to the cache folder and says where.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from examples.wheels import Wheel, cache_folder, move_into_place, opened, scratch_folder

ANARCI = Wheel(
    "anarci==2026.2.13.2", "8f88d49857abc2c5427c6cc903ebdac7b35e6636635eaa9d60bd8f0d4e7d14b7", 1
)
KINDS = {"kappa": "K", "lambda": "L"}


def chains(kind: str) -> Path:
    """JSON lines of the chains of one kind (``text``, ``id``, ``gene``, ``animal``).

    Parameters
    ----------
    kind : "kappa" or "lambda"
    """
    target = _path(kind)
    if not target.exists():
        with scratch_folder() as scratch:
            with opened(ANARCI) as archive:
                source = archive.read("anarci/germlines.py").decode()
            genes = ast.literal_eval(source.partition("=")[2].strip())
            for name, letter in KINDS.items():
                made = scratch / _path(name).name
                made.write_text(_lines(genes, letter), encoding="utf-8")
                move_into_place(made, _path(name))
    return target


def available() -> bool:
    """Whether the chains are in the cache; uses no network."""
    return all(_path(kind).exists() for kind in KINDS)


def _path(kind: str) -> Path:
    return cache_folder() / f"germline-{kind}-1.jsonl"


def _lines(genes: Any, letter: str) -> str:
    lines = []
    seen = set()
    for animal, of_v in sorted(genes["V"][letter].items()):
        for v, first in sorted(of_v.items()):
            for j, last in sorted(genes["J"][letter].get(animal, {}).items()):
                text = (first + last).replace("-", "")
                if text in seen:
                    continue
                seen.add(text)
                gene = f"{animal} {v.partition('*')[0]}"
                entry = {"text": text, "id": f"{animal} {v} {j}", "gene": gene, "animal": animal}
                lines.append(json.dumps(entry))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Fetches what is not there and prints where it lies."""
    for kind in KINDS:
        print(chains(kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
