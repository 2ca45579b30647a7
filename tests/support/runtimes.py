"""The runtime of most tests."""

from sortal.system.progress import Runtime

CPU = Runtime(device="cpu", workers=1)
