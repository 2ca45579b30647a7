"""Runs: a saved result, what can be computed from it, and its exports."""
