"""The plan of a Gram as a value: its tasks and passes, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from actstore.grams.columns import Columns
from actstore.grams.kernel import Tile
from actstore.grams.sizes import show_size
from actstore.grams.tiling import tile_operations, width_of


@dataclass(frozen=True)
class Task:
    """One unit of work: some tiles over a range of row blocks.

    Attributes
    ----------
    tiles : tuple of Tile
    columns : tuple of int
        Column blocks that it reads.
    first, stop : int
        Row blocks ``first`` … ``stop − 1``.
    number : int
        The pass that it belongs to.
    """

    tiles: tuple[Tile, ...]
    columns: tuple[int, ...]
    first: int
    stop: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a task takes.

    Attributes
    ----------
    operations : int
        Floating-point operations.
    held : int
        Bytes of memory: its tiles, and the rows that it multiplies.
    read : int
        Bytes read from the store.
    """

    operations: int
    held: int
    read: int


@dataclass(frozen=True)
class Plan:
    """What computing a Gram takes; inspect it before anything is read.

    Attributes
    ----------
    columns : Columns
    n_samples : int
    block_rows : int
        Most rows multiplied at once.
    n_blocks : int
        Row blocks of the run.
    workers : int
        Tasks that run at the same time.
    dtype : str
        Of the products: "float64", "float32", or "sketch" for float32 products of whitened rows.
    itemsize : int
        Bytes of a number as it is read.
    tasks : tuple of Task
    row_ranges : int
        Shares the rows are cut in; each holds a whole Gram until they are added.
    parts : int
        Parts kept apart, each a Gram of its own; 0 for none.
    passes : int
        Times that rows are gone through; with more than one, a pass's tiles are put on disk before
        the next begins.
    source_bytes : int
        Bytes that the source of the rows holds itself.
    forward : bool
        Whether a model makes the rows, so that a pass is one of the model over the whole corpus.
    blocks : frozenset of (i, j), i ≤ j, or None
        Those computed, where it is not all of them.
    """

    columns: Columns
    n_samples: int
    block_rows: int
    n_blocks: int
    workers: int
    dtype: str
    itemsize: int
    tasks: tuple[Task, ...] = field(repr=False)
    row_ranges: int = 1
    parts: int = 0
    passes: int = 1
    source_bytes: int = 0
    forward: bool = False
    blocks: frozenset[tuple[int, int]] | None = field(default=None, repr=False)

    @property
    def n_columns(self) -> int:
        """N: features of all column blocks together."""
        return sum(column.width for column in self.columns)

    @property
    def tiles(self) -> list[Tile]:
        """Every tile once."""
        return [tile for task in self.tasks if task.first == 0 for tile in task.tiles]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Blocks (i ≤ j) that are computed."""
        return [(t.row, k) for t in self.tiles for k in range(t.start, t.stop)]

    def of_pass(self, number: int) -> list[Task]:
        """Tasks of one pass."""
        return [task for task in self.tasks if task.number == number]

    @property
    def readings(self) -> float:
        """Times that a layer is read by the passes, on average over columns."""
        read = [
            width_of(self.columns, {k for task in self.of_pass(n) for k in task.columns})
            for n in range(self.passes)
        ]
        return sum(read) / self.n_columns

    @property
    def flops(self) -> int:
        """Floating-point operations of the products, a multiplication and an addition each;
        a symmetric product counts half."""
        return self.operations(self.tiles)

    def operations(self, tiles: Iterable[Tile]) -> int:
        """Those of some tiles over all rows."""
        return self.n_samples * sum(tile_operations(tile, self.columns) for tile in tiles)

    @property
    def gram_bytes(self) -> int:
        """Bytes of the result: the symmetric half in float64."""
        return self._tile_bytes(self.tiles)

    @property
    def bytes_read(self) -> int:
        """Bytes read from the store, all tasks together."""
        shares = sum((t.stop - t.first) * width_of(self.columns, t.columns) for t in self.tasks)
        return shares * self.n_samples * self.itemsize // max(self.n_blocks, 1)

    @property
    def peak_memory(self) -> int:
        """Bytes held at most: the tiles of a pass, and each running task's buffers; the rows'
        number does not come into it."""
        product = 8 if self.dtype == "float64" else 4
        grams = self.row_ranges * max(self.parts, 1) + (1 if self.parts else 0)
        scratch = product * max(self._tile_bytes([t]) for t in self.tiles) // 8 * self.workers
        held = 0
        for number in range(self.passes):
            tasks = self.of_pass(number)
            widest = sorted((width_of(self.columns, t.columns) for t in tasks), reverse=True)
            buffers = self.block_rows * sum(widest[: self.workers]) * (product + self.itemsize)
            tiles = self._tile_bytes([tile for t in tasks if t.first == 0 for tile in t.tiles])
            held = max(held, tiles * grams + buffers)
        if self.dtype == "sketch":
            # What whitens, rows on their way to it, and the products that a guard makes again.
            widest_column = max(c.width for c in self.columns)
            held += 16 * self.block_rows * widest_column * self.workers
            held += 16 * sum(c.width**2 for c in self.columns)
            held += self.gram_bytes // (2 * self.passes)
        return held + scratch + self.source_bytes

    def _tile_bytes(self, tiles: Iterable[Tile]) -> int:
        return 8 * sum(
            self.columns[t.row].width * width_of(self.columns, range(t.start, t.stop))
            for t in tiles
        )

    def cost(self, task: Task) -> Cost:
        """What one task takes, wherever it runs."""
        product = 8 if self.dtype == "float64" else 4
        width, share = width_of(self.columns, task.columns), task.stop - task.first
        largest = max(self._tile_bytes([tile]) for tile in task.tiles) // 8
        return Cost(
            operations=self.operations(task.tiles) * share // max(self.n_blocks, 1),
            held=self._tile_bytes(task.tiles) * max(self.parts, 1)
            + self.block_rows * width * (product + self.itemsize)
            + product * largest,
            read=width * share * self.n_samples * self.itemsize // max(self.n_blocks, 1),
        )

    def describe(self) -> str:
        """What `actstore fit --dry-run` prints: one fact a line."""
        costs = [self.cost(task) for task in self.tasks]
        most = {name: max(getattr(cost, name) for cost in costs) for name in Cost.__slots__}
        count = len(self.columns)
        lines = {
            "rows × columns": f"{self.n_samples:,} × {self.n_columns:,} of "
            f"{len(self.columns)} layers",
            "Gram": f"{show_size(self.gram_bytes)} in float64, products in {self.dtype}",
            "blocks": f"{len(self.pairs):,} of {count * (count + 1) // 2:,} pairs of layers",
            "parts kept apart": str(self.parts or "none"),
            "operations": f"{self.flops:.3g}",
            "passes": f"{self.passes}, each layer in {self.readings:.3g} of them"
            + (", tiles on disk in between" if self.passes > 1 else "")
            + (", each runs the model over the corpus" if self.forward else ""),
            "tiles": f"{len(self.tiles):,}",
            "tasks": f"{len(self.tasks):,}, {self.workers} at a time",
            "largest task": f"{most['operations']:.3g} operations, {show_size(most['read'])} read, "
            f"{show_size(most['held'])} held",
            "rows at a time": f"{self.block_rows:,}",
            "made" if self.forward else "read": show_size(self.bytes_read),
            "peak memory": show_size(self.peak_memory)
            + (", all tasks together" if self.workers > 1 else ""),
        }
        width = max(map(len, lines))
        return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())

    def __str__(self) -> str:
        return (
            f"Gram of {len(self.columns)} layers, {self.n_columns:,} columns × "
            f"{self.n_samples:,} rows: {self.flops:.3g} operations in {self.dtype}, "
            f"{len(self.tasks)} tasks on {self.workers} threads, {self.block_rows:,} rows at a "
            f"time, {show_size(self.bytes_read)} read, peak memory {show_size(self.peak_memory)}"
            + (f", {self.parts} parts kept" if self.parts else "")
            + (f", {self.passes} passes with tiles on disk" if self.passes > 1 else "")
        )
