"""The review of a run in the browser."""
