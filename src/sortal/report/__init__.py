"""The report of a run: one HTML file that opens anywhere, with all it shows inside."""

from sortal.report.page import make

__all__ = ["make"]
