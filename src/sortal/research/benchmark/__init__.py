"""The paper's benchmarks: named recipes, one record per run, tables next to the published figures."""
