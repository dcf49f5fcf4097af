"""Training runs on one HTML page: results, curves, configuration and environment."""

from wnfused.report.page import ReportError, render, write
from wnfused.report.tables import Table

__all__ = ["ReportError", "Table", "render", "write"]
