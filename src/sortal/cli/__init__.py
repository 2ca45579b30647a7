"""The `sortal` command: parse, make one library call, print."""
