"""From the names people use for places in a model to sites and numbers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from actstore.errors import SiteError
from actstore.models.aliases import ALIASES
from actstore.models.sites import SiteSpec

Layers = Sequence[int] | slice | int | None

_NUMBER = re.compile(r"(?<=[.\[])(?:-?\d+|\*)(?=[.\]]|$)")
_GLOB = re.compile(r"[*?\[]")
_HIDDEN = re.compile(r"hidden_states(?:\[(-?\d+|\*)\])?")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name leads: a site, and what is added to a number to get the site's own.

    ``counts`` says what the number in the name is of: a block, or a layer of the stream.
    """

    site: str
    shift: int = 0
    counts: Literal["block", "layer"] = "block"


@dataclass(frozen=True, slots=True)
class Names:
    """All names of one model's places.

    Attributes
    ----------
    model : str
    n_blocks : int
    sites : dict of str to SiteSpec
    refused : dict of str to str
        Sites that it has not, with the reason.
    equal : dict of str to Place
        Names found, by the probe, to be the same place as a site: ``attn.in``, and module paths
        with ``*`` for the block's number.
    hidden_states : sequence of (site, number)
        What transformers' own ``hidden_states`` list, place by place; empty if they could not be
        told.
    post_norm : bool
        Whether each sum is normed behind the sub-layer.
    """

    model: str
    n_blocks: int
    sites: Mapping[str, SiteSpec]
    refused: Mapping[str, str]
    equal: Mapping[str, Place]
    hidden_states: Sequence[tuple[str, int]]
    post_norm: bool
    known: dict[str, Place] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", self._table())

    def resolve(self, names: Sequence[str] | str, layers: Layers) -> dict[str, list[int]]:
        """Site → sorted absolute numbers, in the order in which the sites are first named.

        Raises
        ------
        SiteError
            A name or number that the model does not have.
        """
        names = [names] if isinstance(names, str) else list(dict.fromkeys(names))
        if not names:
            raise SiteError(f"no sites asked for; {self.model} has {', '.join(self.sites)}")
        found: dict[str, set[int]] = {}
        chosen = False
        for name in names:
            for site, numbers, from_layers in self._of_name(name, layers):
                found.setdefault(site, set()).update(numbers)
                chosen |= from_layers
        if layers is not None and not chosen and not self._single(found):
            raise SiteError(
                f"layers={layers!r} given, but {', '.join(names)} name their own; leave one out"
            )
        return {site: sorted(numbers) for site, numbers in found.items()}

    def _single(self, found: Mapping[str, set[int]]) -> bool:
        return all(self.sites[site].size == 1 for site in found)

    def _table(self) -> dict[str, Place]:
        """Every name without a number in it (``*`` in its place)."""
        table = {
            name: Place(name, 0, "layer" if spec.dim == "layer" else "block")
            for name, spec in self.sites.items()
        }
        table.update({name: place for name, place in self.equal.items() if "*" not in name})
        several = [name for name, place in table.items() if self.sites[place.site].size > 1]
        table.update({f"{name}[*]": table[name] for name in several})
        table.update(self.equal)
        for alias in ALIASES:
            own, shift = alias.site, alias.shift
            if self.post_norm and alias.post_norm is not None:
                own = alias.post_norm
            there = table.get(own)
            if there is None:
                continue
            place = Place(there.site, there.shift + shift, there.counts)
            if "{block}" in alias.name:
                place = Place(place.site, place.shift, "block")
                short = alias.name.removeprefix("blocks.{block}.").removesuffix("[{block}]")
                table.setdefault(short, place)
            table.setdefault(alias.name.replace("{block}", "*"), place)
        return table

    def _of_name(self, name: str, layers: Layers) -> Iterator[tuple[str, list[int], bool]]:
        """(site, numbers, whether `layers` chose them) for one name."""
        if hidden := _HIDDEN.fullmatch(name):
            yield from self._of_hidden_states(name, hidden[1], layers)
            return
        if name in self.known:
            yield from self._everywhere(self.known[name], layers)
            return
        for match in _NUMBER.finditer(name):
            template = f"{name[: match.start()]}*{name[match.end() :]}"
            if template in self.known and match[0] != "*":
                place = self.known[template]
                number = self._number(place, int(match[0]), f" in {name!r}")
                yield place.site, [number + place.shift], False
                return
        if _GLOB.search(name):
            matched = list(self._of_glob(name, layers))
            if matched:
                yield from matched
                return
        raise SiteError(self._unknown(name))

    def _everywhere(self, place: Place, layers: Layers) -> Iterator[tuple[str, list[int], bool]]:
        size = self._size(place)
        if layers is None or size == 1:
            yield place.site, [n + place.shift for n in range(size)], False
            return
        if isinstance(layers, slice):
            wanted: Sequence[int] = range(size)[layers]
        else:
            wanted = [layers] if isinstance(layers, int) else layers
        if len(wanted) == 0:
            raise SiteError(
                f"no {place.counts}s asked for; {self.model} has 0…{size - 1} of {place.site}"
            )
        numbers = [self._number(place, int(n)) + place.shift for n in wanted]
        yield place.site, numbers, True

    def _of_glob(self, pattern: str, layers: Layers) -> Iterator[tuple[str, list[int], bool]]:
        """Sites first; if there are none of that pattern, other names; then numbered ones."""
        pattern = pattern.replace("[*]", "[[]*]")
        for table in (self.sites, self.known):
            matched = [self.known[name] for name in table if fnmatchcase(name, pattern)]
            if matched:
                for place in dict.fromkeys(matched):
                    yield from self._everywhere(place, layers)
                return
        for name, place in self.known.items():
            for number in range(self._size(place)) if "*" in name else ():
                if fnmatchcase(name.replace("*", str(number)), pattern):
                    yield place.site, [number + place.shift], False

    def _of_hidden_states(
        self, name: str, index: str | None, layers: Layers
    ) -> Iterator[tuple[str, list[int], bool]]:
        size = len(self.hidden_states)
        if size == 0:
            raise SiteError(
                f"{name} asked for, but {self.model} does not list states that could be told "
                "apart; ask for 'resid' (layers 0…L, before the final norm) or 'final_norm'"
            )
        whole = index is None or index == "*"
        if not whole:
            wanted: Sequence[int] = [int(index or 0)]
        elif layers is None:
            wanted = range(size)
        elif isinstance(layers, slice):
            wanted = range(size)[layers]
        else:
            wanted = [layers] if isinstance(layers, int) else layers
        for number in map(int, wanted):
            if not -size <= number < size:
                raise SiteError(
                    f"hidden_states[{number}] asked for, but {self.model} has 0…{size - 1} of them"
                )
            site, own = self.hidden_states[number]
            if site == "final_norm":
                warnings.warn(
                    f"hidden_states[{number}] of {self.model} is taken after the final norm: it is "
                    f"'final_norm' here; before the norm it is layer {self.n_blocks} of 'resid'",
                    UserWarning,
                    stacklevel=2,
                )
            yield site, [own], whole and layers is not None

    def _size(self, place: Place) -> int:
        own = self.sites[place.site].size
        return self.n_blocks if place.counts == "block" and own > 1 else own

    def _number(self, place: Place, number: int, where: str = "") -> int:
        size = self._size(place)
        if -size <= number < size:
            return number % size
        note = " (0 is the embedding)" if place.counts == "layer" and size > 1 else ""
        raise SiteError(
            f"{place.counts} {number} asked for{where}, but {self.model} has {place.counts}s "
            f"0…{size - 1}{note}"
        )

    def _unknown(self, name: str) -> str:
        have = ", ".join(self.sites)
        plain = _NUMBER.sub("*", name, count=1)
        reason = self._reason(name) or self._reason(plain)
        if reason:
            return f"site {name!r} is refused on {self.model}: {reason}; it has {have}"
        near = get_close_matches(plain, self.known, n=3, cutoff=0.7)
        hint = f"; close to it: {', '.join(near)}" if near else ""
        return f"site {name!r} asked for, but {self.model} has {have}{hint}"

    def _reason(self, name: str) -> str | None:
        """Why a known name leads nowhere in this model."""
        site = name.removesuffix("[*]")
        if site in self.refused:
            return self.refused[site]
        for alias in ALIASES:
            starred = alias.name.replace("{block}", "*")
            if name not in (starred, starred.removeprefix("blocks.*.").removesuffix("[*]")):
                continue
            own = alias.site
            if self.post_norm and alias.post_norm is not None:
                own = alias.post_norm
            if own:
                return self.refused.get(own)
            if self.post_norm:
                return (
                    "its blocks norm each sum behind the sub-layer, and no site is the sum before "
                    "that norm ('resid' is after it)"
                )
            return "its blocks do not norm each sum behind the sub-layer"
        return None
