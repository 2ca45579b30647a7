"""Runs: what a saved result is, and what can be computed from it."""
