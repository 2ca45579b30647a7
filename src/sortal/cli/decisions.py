"""What people decided about a run, here or in another tool: decisions, its subcommand, and import."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sortal.cli.options import Json, RunFolder
from sortal.cli.printing import line, print_json, print_list, print_table
from sortal.system.text import plain, plural, shorten

if TYPE_CHECKING:
    from sortal.exchange.importing import ImportResult
    from sortal.reviews.history import Decision

DECISIONS_EXAMPLES = """\
Examples:
  sortal decisions photos-run
  sortal decisions merge photos-run other/decisions.jsonl
"""

IMPORT_EXAMPLES = """\
Examples:
  sortal import photos-run project-1.json
  sortal import photos-run fiftyone-export --by ann
  sortal import photos-run photos-run.csv
"""
PERSON_LENGTH = 60  # characters of who decided something
BY_HELP = "Who annotated the images; by default as the file says, or the current user."

decisions = App(name="decisions", help_format="plaintext", help_epilogue=DECISIONS_EXAMPLES)


@decisions.default
def list_decisions(run: RunFolder, *, json: Json = False) -> None:
    """List what people decided about a run, the oldest first.

    Decisions are in the file decisions.jsonl of the run, one per line. When the
    run is updated or sorted again, they become part of it, and the file is kept
    as decisions-1.jsonl, decisions-2.jsonl and so on; they are listed, too.
    """
    from sortal.reviews import journal
    from sortal.reviews.history import describe
    from sortal.reviews.loading import load_run
    from sortal.runs.run import DECISIONS

    found = load_run(run, raw=True)
    lines = journal.read(run / DECISIONS, found.facts)
    names = journal.replay(found, ()).categories
    before = [(each, words or describe(each.action, names)) for each, words in journal.earlier(run)]
    listed = [*before, *zip(lines, journal.replay(found, lines).words, strict=True)]
    if json:
        marked = zip(listed, (number < len(before) for number in range(len(listed))), strict=True)
        print_json([{**each.to_json(), "words": words, "earlier": earlier} for (each, words), earlier in marked])
    elif listed:
        rows = [(each.at[:16].replace("T", " "), _person(each), line(words)) for each, words in listed]
        print_table(("", "When", "Who", "What"), [(number, *row) for number, row in enumerate(rows, start=1)], left=4)
    else:
        print("Nobody has decided anything about this run yet.")


@decisions.command
def merge(
    run: RunFolder,
    other: Annotated[Path, Parameter(help="The decisions.jsonl of another person's copy of the run.")],
    *,
    json: Json = False,
) -> None:
    """Join another person's decisions about the same run into yours.

    What contradicts one of your decisions is not carried out, but kept in the
    list as disputed. Joining the same file again adds only what is new in it.
    """
    from sortal.reviews import joining

    added, words = joining.merge(run, other)
    if json:
        print_json([each.to_json() for each in added])
    else:
        disputed = sum(bool(each.disputed) for each in added)
        print(f"{plural(len(added) - disputed, 'decision')} added, {disputed:,} disputed.")
        print_list("Not carried out", _sentences(added, words, disputed=True))


def import_annotations(
    run: RunFolder,
    file: Annotated[Path, Parameter(help="File of annotations, or the folder of a FiftyOne data set.")],
    *,
    by: Annotated[str | None, Parameter(help=BY_HELP)] = None,
    json: Json = False,
) -> int:
    """Import annotations of an exported run as decisions.

    Reads exports of Label Studio (JSON, JSON-MIN) and FiftyOne, and tables of
    `sortal export` that you have edited. An annotation that equals the category
    of an image confirms it. Importing a file again adds nothing.

    Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 done, but some images
    are not in the run or have several categories, and were left out.
    """
    from sortal.exchange.importing import import_annotations

    found = import_annotations(run, file, by=by)
    print_json(found.to_json()) if json else print_imported(found)
    return 3 if found.missing or found.disagreeing else 0


def print_imported(found: "ImportResult") -> None:
    """Print what an import has decided, and what it has left out."""
    added = _sentences(found.decisions, found.words, disputed=False)
    count = plural(len(added), "decision")
    print(f"{plural(found.images, 'image')} in {plain(found.file)} ({found.format}): {count} added.")
    print_list("Added", added)
    print_list("Not carried out", _sentences(found.decisions, found.words, disputed=True))
    print_list("Left out, not in the run", [line(file) for file in found.missing])
    print_list("Left out, with several categories", [line(file) for file in found.disagreeing])
    if found.unchanged:
        print(f"\n{plural(found.unchanged, 'image')}: nothing new.")


def _sentences(decisions: "Sequence[Decision]", words: Sequence[str], *, disputed: bool) -> list[str]:
    """Return who decided what, for the decisions that are disputed or for those that are not."""
    pairs = zip(decisions, words, strict=True)
    return [f"{_person(each)}: {line(text)}" for each, text in pairs if bool(each.disputed) == disputed]


def _person(decision: "Decision") -> str:
    return shorten(plain(decision.by), PERSON_LENGTH)
