"""The paper: its benchmarks and figures."""
