"""Messages on standard error: notes, errors and summaries beside the result."""

import sys


def note(text: str) -> None:
    say(f"sortal: {text}")


def complain(message: str, code: int) -> int:
    """Print an error, and return the exit code."""
    say(f"sortal: error: {message}")
    return code


def say(text: str) -> None:
    if sys.stderr is not None:  # if it is closed, print would write to stdout
        print(text, file=sys.stderr)
