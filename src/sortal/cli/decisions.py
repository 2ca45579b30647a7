"""What people decided about a run, here or in another tool: decisions, its subcommand, and import."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from sortal.cli import printing
from sortal.cli.options import Json, RunFolder

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
BY = "Who annotated the images; by default as the file says, or the current user."

decisions = App(name="decisions", help_format="plaintext", help_epilogue=DECISIONS_EXAMPLES)


@decisions.default
def list_decisions(run: RunFolder, *, json: Json = False) -> None:
    """List what people decided about a run, the oldest first.

    Decisions are in the file decisions.jsonl of the run, one per line. When the
    run is updated or sorted again, they become part of it, and the file is kept
    as decisions-1.jsonl, decisions-2.jsonl and so on.
    """
    from sortal.review import journal
    from sortal.review.loading import load_run
    from sortal.runs.run import DECISIONS

    found = load_run(run, raw=True)
    lines = journal.read(run / DECISIONS, found.facts)
    said = journal.replay(found, lines).words
    if json:
        rows = [{**line.to_json(), "words": words} for line, words in zip(lines, said, strict=True)]
        print(jsonlib.dumps(rows, indent=2))
    else:
        printing.decisions(lines, said)


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
    from sortal.review import joining

    added, said = joining.merge(run, other)
    print(jsonlib.dumps([each.to_json() for each in added], indent=2)) if json else printing.joined(added, said)


def import_annotations(
    run: RunFolder,
    file: Annotated[Path, Parameter(help="File of annotations, or the folder of a FiftyOne data set.")],
    *,
    by: Annotated[str | None, Parameter(help=BY)] = None,
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
    print(jsonlib.dumps(found.to_json(), indent=2)) if json else printing.imported(found)
    return 3 if found.missing or found.disagreeing else 0
