"""A run in the browser: its report, and its review."""
