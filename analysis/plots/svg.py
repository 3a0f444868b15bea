"""Figures as SVG text that stands inside an HTML page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from analysis.plots.style import INK, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def inline_svg(figure: Figure, prefix: str) -> str:
    """An ``<svg>`` element that takes the page's text colour and fits its width.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Drawn with this package's colours; the ink becomes ``currentColor``.
    prefix : str
        Put before every id, so that several figures can share a page.

    Returns
    -------
    str
        The element, the same bytes for the same data, referring to nothing outside itself.
    """
    text = io.StringIO()
    with style():
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    for unwanted in (r"<metadata>.*?</metadata>", r"<style.*?</style>"):
        svg = re.sub(unwanted, "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'\bhref="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(INK, "currentColor", svg, flags=re.IGNORECASE)
    svg = re.sub(r'\b(d|x|y|transform)="[^"]*"', _shorter, svg)
    width, height = (72 * inches for inches in figure.get_size_inches())
    root = (
        f'<svg viewBox="0 0 {width:g} {height:g}" style="max-width:{width * 4 / 3:.0f}px;'
        f'stroke-linejoin:round;stroke-linecap:butt" role="img">'
    )
    return root + svg[svg.index(">") + 1 :].strip()


def _shorter(attribute: re.Match[str]) -> str:
    """Coordinates to hundredths of a point, on one line."""
    text = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}", attribute.group())
    return " ".join(text.split())
