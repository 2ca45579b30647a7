"""The report of a run: one self-contained HTML file."""

from sortal.web.report import make_report as make_report
