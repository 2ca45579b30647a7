"""The report of a run: one self-contained HTML file."""

from sortal.web.highlights import Comparison as Comparison
from sortal.web.highlights import compare_categories as compare_categories
from sortal.web.report import make_report as make_report
