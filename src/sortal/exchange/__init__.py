"""Runs in the formats of other tools, out and in."""
