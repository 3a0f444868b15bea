"""Tables of runs, as aligned text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actstore.store.run import Run

COLUMNS = ("model", "corpus", "sites", "layers", "samples", "dtype", "size", "state")
_RIGHT = frozenset({"samples", "size"})


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """Columns aligned under their names; numbers to the right."""
    widths = {c: max(len(c), *(len(str(row[c])) for row in rows)) for c in COLUMNS}

    def line(row: dict[str, Any]) -> str:
        cells = (
            str(row[c]).rjust(widths[c]) if c in _RIGHT else str(row[c]).ljust(widths[c])
            for c in COLUMNS
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line({c: c for c in COLUMNS}), *(line(row) for row in rows)])


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
    from actstore.store.select import spans

    summary = run.summary()
    lines = [
        f"<actstore.Run {run.name}>  {summary['samples']} samples, {run.dtype}, "
        f"{summary['size']}, {run.state}"
    ]
    for site, layers in run.sites.items():
        dim = run.stored.record.sites[site].dim
        lines.append(f"  {site}  {dim} {spans(layers)}, {run.width(site)} features")
    lines.append(f"  coordinates  {', '.join(run.stored.record.columns)}")
    return "\n".join(lines)


def run_html(run: Run) -> str:
    """A run as a one-row table."""
    return html_table([run.summary()])


def human_bytes(n: int) -> str:
    """``1.2 GB``: decimal units."""
    size = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
