"""The paper's benchmarks: named recipes, one record a run, tables beside the published figures."""
