"""Reaction SMILES by rule: ten named reactions of pairs of building blocks.

No package at hand carries reactions from the literature, and the masked BERT of the assets needs
some to read. These are made here, from textbook transformations and common fragments, each a
valid SMILES by construction; their kind and their building blocks are known. The model gets 90%
of masked tokens in them right, about as many as in reactions that were run; but they are not a
sample of those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

# Fragments begin with the atom that binds; {0} is the number of a ring's bond.
ARYLS = (
    "c{0}ccccc{0}",
    "c{0}ccc(C)cc{0}",
    "c{0}ccc(Cl)cc{0}",
    "c{0}ccc(F)cc{0}",
    "c{0}ccc(OC)cc{0}",
    "c{0}ccc(C#N)cc{0}",
    "c{0}ccc(C(F)(F)F)cc{0}",
    "c{0}cccc(Cl)c{0}",
    "c{0}cccc(OC)c{0}",
    "c{0}cccc(F)c{0}",
    "c{0}ccccc{0}C",
    "c{0}ccccc{0}Cl",
    "c{0}ccccc{0}OC",
    "c{0}ccc(F)c(F)c{0}",
    "c{0}ccc(Cl)c(Cl)c{0}",
    "c{0}cc(C)cc(C)c{0}",
    "c{0}ccncc{0}",
    "c{0}cccnc{0}",
    "c{0}cnc(N)nc{0}",
    "c{0}cccs{0}",
    "c{0}ccco{0}",
    "c{0}ccc(N(C)C)cc{0}",
    "c{0}ccc(C(C)=O)cc{0}",
    "c{0}ccc(C(C)C)cc{0}",
)
ALKYLS = (
    "CC",
    "CCC",
    "C(C)C",
    "CC(C)C",
    "CCCC",
    "CCOC",
    "CCO",
    "CC(F)(F)F",
    "C{0}CC{0}",
    "C{0}CCCC{0}",
    "C{0}CCCCC{0}",
    "C{0}CCOCC{0}",
    "CC{0}CC{0}",
    "CCN(C)C",
    "Cc{0}ccccc{0}",
    "Cc{0}ccc(F)cc{0}",
    "CCc{0}ccccc{0}",
    "Cc{0}ccncc{0}",
    "CC(=O)OC",
    "CCCN(C)C",
)


def _biaryl(a: str, b: str) -> str:
    """Two aryls joined: the second is a branch on the first's binding atom."""
    return f"c2({b.format(1)}){a.format(2)[2:]}"


def _on(a: str, b: str) -> tuple[str, str]:
    return a.format(1), b.format(1)


def _amide(a: str, b: str) -> str:
    a, b = _on(a, b)
    return f"O=C(O){a}.N{b}>>O=C(N{b}){a}"


def _ester(a: str, b: str) -> str:
    a, b = _on(a, b)
    return f"O=C(O){a}.O{b}>>O=C(O{b}){a}"


def _hydrolysis(a: str, b: str) -> str:
    return f"O=C(OC)c1ccc({_branch(a, b)})cc1.[Na+].[OH-]>>O=C(O)c1ccc({_branch(a, b)})cc1"


def _branch(a: str, b: str) -> str:
    return f"C(O{b.format(2)}){a.format(2)}"


def _suzuki(a: str, b: str) -> str:
    return f"Br{a.format(1)}.OB(O){b.format(1)}>>{_biaryl(a, b)}"


def _sulfonamide(a: str, b: str) -> str:
    a, b = _on(a, b)
    return f"O=S(=O)(Cl){a}.N{b}>>O=S(=O)(N{b}){a}"


def _reductive_amination(a: str, b: str) -> str:
    a, b = _on(a, b)
    return f"O=C{a}.N{b}.[BH4-].[Na+]>>C({a})N{b}"


def _alkylation(a: str, b: str) -> str:
    a, b = _on(a, b)
    return f"O{a}.Br{b}.O=C([O-])[O-].[K+].[K+]>>O({a}){b}"


def _nitro_reduction(a: str, b: str) -> str:
    left = _branch(a, b)
    return f"O=[N+]([O-])c1ccc({left})cc1.[Fe]>>Nc1ccc({left})cc1"


def _deprotection(a: str, b: str) -> str:
    a, b = a.format(2), b.format(2)
    left = f"C({a})C(=O)N{b}"
    return f"CC(C)(C)OC(=O)N{left}.O=C(O)C(F)(F)F>>N{left}"


def _urea(a: str, b: str) -> str:
    a, b = _on(a, b)
    return f"O=C=N{a}.N{b}>>O=C(N{a})N{b}"


KINDS: dict[str, tuple[Callable[[str, str], str], tuple[str, ...], tuple[str, ...]]] = {
    "amide coupling": (_amide, ARYLS, ALKYLS),
    "esterification": (_ester, ARYLS, ALKYLS),
    "ester hydrolysis": (_hydrolysis, ARYLS, ALKYLS),
    "Suzuki coupling": (_suzuki, ARYLS, ARYLS),
    "sulfonamide": (_sulfonamide, ARYLS, ALKYLS),
    "reductive amination": (_reductive_amination, ARYLS, ALKYLS),
    "O-alkylation": (_alkylation, ARYLS, ALKYLS),
    "nitro reduction": (_nitro_reduction, ARYLS, ALKYLS),
    "Boc deprotection": (_deprotection, ARYLS, ALKYLS),
    "urea": (_urea, ARYLS, ALKYLS),
}


def reactions(each: int, seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """(reaction SMILES, kind, first building block), so many of each kind, without repetition."""
    rng = np.random.default_rng(seed)
    for kind, (write, first, second) in KINDS.items():
        pairs = list(product(first, second))
        for place in np.sort(rng.permutation(len(pairs))[:each]):
            a, b = pairs[place]
            yield write(a, b), kind, a.format(1)


def write_reactions(path: Path, each: int = 60, seed: int = 0) -> None:
    """JSON lines with ``text``, ``kind``, ``core`` (the first building block) and ``id``."""
    with path.open("w", encoding="utf-8") as file:
        for number, (text, kind, core) in enumerate(reactions(each, seed)):
            record = {"text": text, "kind": kind, "core": core, "id": f"{kind} #{number}"}
            file.write(json.dumps(record) + "\n")
