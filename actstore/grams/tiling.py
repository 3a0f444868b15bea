"""How the upper triangle of ZᵀZ is cut: into tiles, shares of equal work, and passes.

Tiles that do not fit in memory together are made pass by pass, each pass over some of the layers.
With q² bundles of layers as the points of an affine plane, every line is a pass of q bundles; two
bundles lie on one line together, so that every pair is made once, and each bundle is read q + 1
times for 1/q² of the memory. Square super-tiles of that memory would take about 1.4 q readings.
There is such a plane for every prime power q, over the field of q elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from actstore.grams.columns import Columns
from actstore.grams.kernel import Tile

TILE_WIDTH = 1536
WIDEST = 6144
ORDERS = (2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 19, 23, 27, 31, 37, 43, 53, 61)
FIELDS = {
    4: (2, (1, 1)),
    8: (2, (1, 1, 0)),
    16: (2, (1, 1, 0, 0)),
    9: (3, (1, 0)),
    27: (3, (1, 2, 0)),
}
"""Of an order that is no prime: the prime, and an irreducible polynomial over it, of leading
coefficient 1 and these others, the constant first."""


def plane_orders(layers: int) -> list[int]:
    """Orders q of the planes that are of use: 1 for a single pass, then more and more, up to where
    a line has two layers or so, then 0 for a pass for each pair."""
    if layers <= 2:
        return [1]
    return [1, *(q for q in ORDERS if q < layers), 0]


def share_passes(
    columns: Columns,
    shares: int,
    order: int,
    blocks: Collection[tuple[int, int]] | None = None,
) -> list[list[list[Tile]]]:
    """Tiles by pass, and in each in up to `shares` lots of equal work; of some blocks alone, where
    they are given."""
    if blocks is not None:
        passes = _share(_tiles_of(columns, blocks), columns, order or len(blocks))
        return [_share(tiles, columns, shares) for tiles in passes]
    if order == 1:
        return [share_triangle(columns, shares)]
    return [_share(tiles, columns, shares) for tiles in _pass_tiles(columns, order)]


def _pass_tiles(columns: Columns, order: int) -> Iterator[list[Tile]]:
    bundles = (
        _bundles(columns, order * order) if order else [(k, k + 1) for k in range(len(columns))]
    )
    for line, diagonal in _lines(len(bundles), order):
        tiles = []
        for at, a in enumerate(line):
            rows = range(*bundles[a])
            if diagonal:
                for row in rows:
                    tiles.append(Tile(row, row, row + 1))
                    tiles += _split(columns, row, row + 1, rows.stop)
            for b in line[at + 1 :]:
                for row in rows:
                    tiles += _split(columns, row, *bundles[b])
        if tiles:
            yield tiles


def _tiles_of(columns: Columns, blocks: Collection[tuple[int, int]]) -> list[Tile]:
    """Row by row; neighbouring blocks are one tile."""
    tiles = []
    for row in range(len(columns)):
        across = sorted(k for k in range(row + 1, len(columns)) if (row, k) in blocks)
        if (row, row) in blocks:
            tiles.append(Tile(row, row, row + 1))
        cuts = [k for k in range(1, len(across)) if across[k] != across[k - 1] + 1]
        for first, last in pairwise([0, *cuts, len(across)] if across else []):
            tiles += _split(columns, row, across[first], across[last - 1] + 1)
    return tiles


def _lines(points: int, order: int) -> Iterator[tuple[list[int], bool]]:
    """Lines of the affine plane, cut to the points there are, and whether a line owns its points'
    products with themselves. Order 0: every pair."""
    if order == 0:
        for a in range(points):
            yield [a], True
            for b in range(a + 1, points):
                yield [a, b], False
        return
    times = _multiplication(order)
    plus = _addition(order)
    # Point x + q·c lies at (x, c − x²). A line meets the parabola of one c twice at most, so that
    # fewer than q² points are spread over all lines.
    for x in range(order):
        yield list(range(x, points, order)), True
    for slope in range(order):
        for start in range(order):
            line = [x + order * plus(times(plus(slope, x), x), start) for x in range(order)]
            yield sorted(p for p in line if p < points), False


def _addition(order: int) -> Callable[[int, int], int]:
    """Of the field of `order` elements, which are numbers whose digits to the base of the prime
    are the coefficients of polynomials."""
    if order not in FIELDS:
        return lambda a, b: (a + b) % order
    prime, rest = FIELDS[order]

    def plus(a: int, b: int) -> int:
        digits = zip(_digits(a, prime, len(rest)), _digits(b, prime, len(rest)), strict=True)
        return _number([(x + y) % prime for x, y in digits], prime)

    return plus


def _multiplication(order: int) -> Callable[[int, int], int]:
    if order not in FIELDS:
        return lambda a, b: a * b % order
    prime, rest = FIELDS[order]
    size = len(rest)

    def times(a: int, b: int) -> int:
        product = [0] * (2 * size - 1)
        for i, x in enumerate(_digits(a, prime, size)):
            for j, y in enumerate(_digits(b, prime, size)):
                product[i + j] += x * y
        for power in range(2 * size - 2, size - 1, -1):
            for k, coefficient in enumerate(rest):
                product[power - size + k] -= product[power] * coefficient
            product[power] = 0
        return _number([value % prime for value in product[:size]], prime)

    return times


def _digits(number: int, base: int, count: int) -> list[int]:
    return [number // base**k % base for k in range(count)]


def _number(digits: Sequence[int], base: int) -> int:
    return sum(digit * base**k for k, digit in enumerate(digits))


def _bundles(columns: Columns, count: int) -> list[tuple[int, int]]:
    """Neighbouring columns in up to `count` bundles of about equal width."""
    count = min(count, len(columns))
    ends = np.cumsum([column.width for column in columns])
    middle = ends - np.array([column.width for column in columns]) / 2
    owner = np.minimum((middle * count / ends[-1]).astype(int), count - 1)
    cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(columns)]
    return list(pairwise(cuts))


def _split(columns: Columns, row: int, start: int, stop: int) -> list[Tile]:
    """Tiles of one row of blocks, none wider than a product needs to be."""
    tiles, width, first = [], 0, start
    for k in range(start, stop):
        if k > first and width + columns[k].width > TILE_WIDTH:
            tiles.append(Tile(row, first, k))
            first, width = k, 0
        width += columns[k].width
    return [*tiles, Tile(row, first, stop)] if first < stop else tiles


def _share(tiles: Sequence[Tile], columns: Columns, shares: int) -> list[list[Tile]]:
    """Lots of equal work of tiles that follow each other, neighbours in a lot made one."""
    work = np.array([tile_operations(tile, columns) for tile in tiles], float)
    middle = (np.cumsum(work) - work / 2) / work.sum()
    owner = np.minimum((middle * shares).astype(int), shares - 1)
    lots = [[t for t, o in zip(tiles, owner, strict=True) if o == k] for k in range(shares)]
    return [_merged(lot, columns) for lot in lots if lot]


def _merged(tiles: Sequence[Tile], columns: Columns) -> list[Tile]:
    """Tiles of one row that touch as one, up to a width beyond which no product is quicker; small
    tiles are for even shares, not for speed."""
    merged: list[Tile] = []
    for tile in sorted(tiles, key=lambda tile: (tile.row, tile.start)):
        last = merged[-1] if merged else tile
        if (
            (last.row, last.stop) == (tile.row, tile.start)
            and not last.diagonal
            and width_of(columns, range(last.start, tile.stop)) <= WIDEST
        ):
            merged[-1] = Tile(tile.row, last.start, tile.stop)
        else:
            merged.append(tile)
    return merged


def share_triangle(columns: Columns, shares: int) -> list[list[Tile]]:
    """Tiles of the upper triangle, in up to `shares` lots of equal work that lie together."""
    groups = _groups(columns, shares)
    tiles: list[Tile] = []
    for a, b in _triangle(0, len(groups)):
        for row in range(*groups[a]):
            if a == b:
                tiles.append(Tile(row, row, row + 1))
            start = max(row + 1, groups[b][0])
            if start < groups[b][1]:
                tiles.append(Tile(row, start, groups[b][1]))
    return _share(tiles, columns, shares)


def _groups(columns: Columns, shares: int) -> list[tuple[int, int]]:
    """Runs of neighbouring column blocks, each a tile's width; narrower where the tiles would be
    too few to share out."""
    limit = TILE_WIDTH
    while True:
        groups, start, width = [], 0, 0
        for k, column in enumerate(columns):
            if k > start and width + column.width > limit:
                groups.append((start, k))
                start, width = k, 0
            width += column.width
        groups.append((start, len(columns)))
        if len(groups) >= min(len(columns), 2 * shares) or len(groups) == len(columns):
            return groups
        limit = limit * 3 // 4


def _triangle(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Pairs a ≤ b in an order whose pieces stay compact."""
    if high - low == 1:
        yield low, low
        return
    middle = (low + high) // 2
    yield from _triangle(low, middle)
    yield from _square(low, middle, middle, high)
    yield from _triangle(middle, high)


def _square(a0: int, a1: int, b0: int, b1: int) -> Iterator[tuple[int, int]]:
    if a1 - a0 == b1 - b0 == 1:
        yield a0, b0
    elif a1 - a0 >= b1 - b0:
        middle = (a0 + a1) // 2
        yield from _square(a0, middle, b0, b1)
        yield from _square(middle, a1, b0, b1)
    else:
        middle = (b0 + b1) // 2
        yield from _square(a0, a1, b0, middle)
        yield from _square(a0, a1, middle, b1)


def tile_operations(tile: Tile, columns: Columns) -> int:
    """Floating-point operations of a tile for one row."""
    height = columns[tile.row].width
    width = sum(columns[k].width for k in range(tile.start, tile.stop))
    return height * width * (1 if tile.diagonal else 2)


def columns_of(tiles: Sequence[Tile]) -> tuple[int, ...]:
    return tuple(sorted({k for t in tiles for k in (t.row, *range(t.start, t.stop))}))


def width_of(columns: Columns, chosen: Iterable[int]) -> int:
    return sum(columns[k].width for k in chosen)
