"""The command line: parse, make one library call, print. Heavy imports stay inside the command that needs them."""

import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from sortal import __version__
from sortal.errors import SortalError

if TYPE_CHECKING:
    from sortal.demo import DemoResult

HELP = "Sortal sorts partly labelled images into classes: the ones you have named and the ones nobody has named yet."

# Line breaks here, and after the first paragraph of a command's docstring, are printed as they stand: 80 columns.
EXAMPLES = """\
Examples:
  sortal demo                  find ten digits, five of them never named
  sortal demo --k auto         the same, without being told that there are ten
  sortal demo --labelled 0.1   with fewer labels
  sortal demo --json           the result as JSON
"""

app = App(
    name="sortal",
    help=HELP,
    help_epilogue=EXAMPLES,
    help_format="plaintext",
    version=__version__,
    # Errors, Ctrl-C and the exit code are handled in one place, main().
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)


@app.command
def demo(
    *,
    k: Annotated[int | Literal["auto"], Parameter(metavar="INT|auto", show_choices=False)] = 10,
    labelled: float = 0.5,
    n_init: int = 10,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> None:
    """Discover classes among handwritten digits.

    Of 1,797 small images, half of the digits 0 to 4 are labelled; 5 to 9 have
    no label at all. Clusters them with and without the labels and compares
    both with the truth, on the unlabelled images only.

    Parameters
    ----------
    k
        Number of classes to find; auto estimates it.
    labelled
        Fraction of the images of digits 0 to 4 that are labelled.
    n_init
        Restarts of k-means; the best one counts.
    seed
        Seed of the choice of labelled images and of k-means.
    device
        Where to compute.
    json
        Write the result as JSON.
    """
    with _progress() as on_step:
        on_step("Starting")
        from sortal.demo import run

        result = run(k=k, labelled=labelled, n_init=n_init, seed=seed, device=device, on_step=on_step)
    if json:
        print(jsonlib.dumps(asdict(result), indent=2))
    else:
        _show_demo(result)


def _show_demo(result: "DemoResult") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    def percent(fraction: float | None) -> str:
        return "n/a" if fraction is None else f"{100 * fraction:.1f}"

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("Accuracy, %")
    for heading in ("All", "Old", "New"):
        table.add_column(heading, justify="right")
    for name, row in (("plain k-means", result.plain), ("semi-supervised k-means", result.semi_supervised)):
        table.add_row(name, percent(row.all), percent(row.old), percent(row.new))

    console = Console(highlight=False)
    console.print(
        f"{result.n_labelled + result.n_unlabelled:,} handwritten digits, {result.n_labelled:,} labelled. "
        f"Old classes {_span(result.old)}, new classes {_span(result.new)}."
    )
    console.print(f"k = {result.k}, {'estimated' if result.k_estimated else 'given'}; the truth is {result.k_true}.\n")
    console.print(table)
    console.print(f"\nMeasured on the {result.n_unlabelled:,} unlabelled images; {result.seconds:.1f} s.")
    console.print("On raw pixels labels gain little: the tightest clusters are not the digits.")


def _span(classes: Sequence[int]) -> str:
    return f"{min(classes)}–{max(classes)}"


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is going on, on stderr, and shows nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 bad usage or input, 130 interrupted."""
    try:
        app(sys.argv[1:] if tokens is None else tokens)
        print(end="", flush=True)  # a reader that has gone away shows here, not while Python shuts down
    except CycloptsError as error:
        return _complain(f"{error} See {' '.join(('sortal', *(error.command_chain or ()), '--help'))}.")
    except SortalError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush of all succeeds
        return 1
    return 0


def _complain(message: str) -> int:
    print(f"sortal: error: {message}", file=sys.stderr)
    return 2
