"""Attacks on Sortal: each tries to break it in one way, once in the tests and many times in `make attack`."""
