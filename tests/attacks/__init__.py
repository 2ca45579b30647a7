"""Attacks on Sortal: each tries to break it in one way, a few times in `make test` and for an hour in `make attack`."""
