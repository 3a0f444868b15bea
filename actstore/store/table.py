"""Tables of runs, as aligned text and as HTML."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from actstore.store.select import spans
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.store.run import Run
    from actstore.store.stored import StoredRun

COLUMNS = ("model", "corpus", "sites", "layers", "samples", "dtype", "size", "state")
CACHE_COLUMN = "cache"
_RIGHT = frozenset({"samples", "size", CACHE_COLUMN})


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """Columns aligned under their names; numbers to the right.

    The size of the cache is a column where a row tells of it.
    """
    columns = [*COLUMNS, *([CACHE_COLUMN] if any(row.get(CACHE_COLUMN) for row in rows) else [])]
    widths = {c: max(len(c), *(len(str(row[c])) for row in rows)) for c in columns}

    def line(row: dict[str, Any]) -> str:
        cells = (
            str(row[c]).rjust(widths[c]) if c in _RIGHT else str(row[c]).ljust(widths[c])
            for c in columns
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line({c: c for c in columns}), *(line(row) for row in rows)])


def html_table(rows: Sequence[dict[str, Any]]) -> str:
    """The same as an HTML table."""
    head = "".join(f"<th>{c}</th>" for c in COLUMNS)
    body = "".join(f"<tr>{''.join(_cell(c, row[c]) for c in COLUMNS)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(column: str, value: object) -> str:
    side = "right" if column in _RIGHT else "left"
    return f'<td style="text-align:{side}">{escape(str(value))}</td>'


def run_text(run: Run) -> str:
    """A run in a few lines."""
    summary = run_row(run)
    total = run.stored.record.n_samples
    samples = count(total, "sample")
    if run.n_samples != total:
        samples = f"{run.n_samples:,} of {samples}"
    lines = [f"<actstore.Run {run.name}>  {samples}, {run.dtype}, {summary['size']}, {run.state}"]
    for site, layers in run.sites.items():
        dim = run.stored.record.sites[site].dim
        lines.append(f"  {site}  {dim} {spans(layers)}, {count(run.width(site), 'feature')}")
    lines.append(f"  coordinates  {', '.join(run.stored.record.columns)}")
    return "\n".join(lines)


def run_row(run: Run) -> dict[str, str]:
    """A run's row in a table."""
    total = run.stored.record.n_samples
    part = f" of {total:,}" if run.n_samples != total else ""
    return {
        "model": run.model,
        "corpus": run.corpus,
        "sites": ", ".join(run.sites),
        "layers": "; ".join(dict.fromkeys(spans(layers) for layers in run.sites.values())),
        "samples": f"{run.n_samples:,}{part}",
        "dtype": run.dtype,
        "size": human_bytes(run.nbytes),
        "state": run.state,
    }


def run_info(stored: StoredRun) -> dict[str, Any]:
    """Everything a stored run says of itself, as plain JSON values."""
    record = stored.record
    wanted = record.wanted()
    sites = {
        name: {
            "dim": site.dim,
            "size": site.size,
            "width": site.width,
            "module": site.module,
            "layers": wanted[name],
        }
        for name, site in record.sites.items()
    }
    return copy.deepcopy(
        {
            "model": record.model,
            "corpus": record.corpus,
            "state": stored.state,
            "n_samples": record.n_samples,
            "n_sequences": record.n_sequences,
            "n_shards": record.n_shards,
            "shard_rows": record.shard_rows,
            "dtype": record.dtype,
            "dtype_error": record.stored.error,
            "codec": record.codec,
            "nbytes": stored.nbytes,
            "sites": sites,
            "coordinates": list(record.columns),
            "key": record.key,
            "info": record.info,
        }
    )


def human_bytes(n: int) -> str:
    """``1.2 GB``: decimal units."""
    size = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
