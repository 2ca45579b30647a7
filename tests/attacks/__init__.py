"""Attacks on Sortal: each tries to break it in one way, once in `make test` and many times in `make attack`."""
