"""One self-contained HTML file of results; needs the extra ``plots``."""

from analysis.report.building import build, findings
from analysis.report.page import Cell, Peek, Picture, Section, Table, write

__all__ = ["Cell", "Peek", "Picture", "Section", "Table", "build", "findings", "write"]
