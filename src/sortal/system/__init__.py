"""The machine: files, locks, signals, processes, devices."""
