"""What the Grams of large models take on 1, 8 and 64 workers, by the planner; as markdown.

Nothing is computed. Passes, tasks, operations and bytes are those of the plans that `gram` would
carry out; seconds are operations and bytes by the rates assumed, which are printed. A worker works
at one task at a time and holds what that task holds; reading goes on while it multiplies, so that
the slower of the two counts, and tiles that go to disk between passes are written after each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from actstore.errors import GramError
from actstore.grams import Column, Columns, Plan, make_plan
from actstore.grams.sizes import parse_size, show_size
from benchmarks.harness import cores, limit

MODELS = {
    "GPT-2 XL": (49, 1600),
    "Llama-8B": (33, 4096),
    "70B": (81, 8192),
}
SHARE = 0.8


@dataclass(frozen=True)
class Rates:
    """What one worker is assumed to have.

    Attributes
    ----------
    operations : float
        A second, in float64.
    read, write : float
        Bytes a second from and to the store.
    memory : int
        Bytes.
    """

    operations: float
    read: float
    write: float
    memory: int


class Rows:
    """A run that nobody reads."""

    model, corpus, dtype = "m", "c", "float16"

    def __init__(self, n_samples: int) -> None:
        self.n_samples = n_samples

    def row_blocks(self, max_rows: int) -> range:
        """As many as there would be."""
        return range(-(-self.n_samples // max_rows))


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    options = _options(arguments)
    core = Rates(
        options.core or SHARE * limit().by_clock / cores(),
        parse_size(options.read),
        parse_size(options.write),
        parse_size(options.memory),
    )
    told = f"{core.operations / 1e9:.0f} Gflop/s in float64"
    if not options.core:
        told += f", {100 * SHARE:.0f}% of what a core of this machine reaches"
    print(_table(f"a CPU core: {told}", core, options))
    if options.gpu:
        gpu = Rates(options.gpu, core.read, core.write, parse_size(options.gpu_memory))
        print(_table(f"a GPU: {gpu.operations / 1e12:.0f} Tflop/s in float64", gpu, options))


def _table(worker: str, rates: Rates, options: argparse.Namespace) -> str:
    head = (
        "model",
        "workers",
        "Gram",
        "rows read",
        "passes × tasks",
        "a worker holds",
        "a worker reads",
        "multiplying",
        "reading",
        "in all",
    )
    lines = [
        f"\nA worker is {worker}; it holds up to {show_size(rates.memory)}, reads "
        f"{rates.read / 1e9:g} GB/s and writes {rates.write / 1e9:g} GB/s. {options.rows:,} "
        "float16 rows of all layers, products in float64.\n",
        f"| {' | '.join(head)} |",
        f"|{'|'.join(['---'] * 2 + ['--:'] * (len(head) - 2))}|",
    ]
    for name, (layers, width) in MODELS.items():
        columns = Columns([Column("resid", k, width) for k in range(layers)], name)
        for workers in options.workers:
            try:
                cells = _cells(make(columns, workers, rates, options.rows), rates)
            except GramError as error:
                cells = [f"does not fit: {error}"]
            lines.append(f"| {name}, {layers} × {width} | {workers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make(columns: Columns, workers: int, rates: Rates, rows: int) -> Plan:
    """The plan within the memory of all workers."""
    memory = workers * rates.memory
    plan = make_plan(
        Rows(rows),  # type: ignore[arg-type]
        columns,
        workers=workers,
        memory=memory,
        tiled=True,
    )
    if plan.workers < workers:
        raise GramError(f"{workers} tasks do not fit, {plan.workers} would")
    return plan


def _cells(plan: Plan, rates: Rates) -> list[str]:
    multiplying = reading = whole = 0.0
    for number in range(plan.passes):
        costs = [plan.cost(task) for task in plan.of_pass(number)]
        most = max(cost.operations for cost in costs) / rates.operations
        read = max(cost.read for cost in costs) / rates.read
        multiplying, reading, whole = multiplying + most, reading + read, whole + max(most, read)
    if plan.passes > 1:
        whole += plan.gram_bytes / plan.workers / rates.write
    costs = [plan.cost(task) for task in plan.tasks]
    return [
        show_size(plan.gram_bytes),
        f"{plan.readings:.3g}×",
        f"{plan.passes} × {len(plan.of_pass(0))}",
        show_size(max(cost.held for cost in costs)),
        show_size(sum(cost.read for cost in costs) / plan.workers),
        _time(multiplying),
        _time(reading),
        _time(whole),
    ]


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks plan_table", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000)
    add("--workers", type=int, nargs="+", default=[1, 8, 64])
    add("--core", type=float, help="float64 operations a second of a core; default: measured")
    add("--memory", default="32GiB", help="of a worker that is a core; default 32GiB")
    add("--gpu", type=float, default=40e12, help="of a GPU, 0 for none; default 4e13")
    add("--gpu-memory", default="80GiB", help="of a GPU; default 80GiB")
    add("--read", default="1GB", help="bytes a second that a worker reads; default 1GB")
    add("--write", default="1GB", help="bytes a second that a worker writes; default 1GB")
    return parser.parse_args(arguments)
