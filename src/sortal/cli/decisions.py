"""The commands of `sortal decisions`: what people decided about a run."""

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

decisions = App(name="decisions", help_format="plaintext", help_epilogue=DECISIONS_EXAMPLES)


@decisions.default
def list_decisions(run: RunFolder, *, json: Json = False) -> None:
    """List what people decided about a run, the oldest first.

    Decisions are in the file decisions.jsonl of the run, one per line. When the
    run is updated or sorted again, they become part of it, and the file is kept
    as decisions-1.jsonl, decisions-2.jsonl and so on.
    """
    from sortal.runs import journal
    from sortal.runs.run import DECISIONS
    from sortal.runs.storage import load_run

    found = load_run(run, raw=True)
    lines = journal.read(run / DECISIONS, found.facts)
    told = journal.in_words(found, lines)
    if json:
        rows = [{**line.to_json(), "words": words} for line, words in zip(lines, told, strict=True)]
        print(jsonlib.dumps(rows, indent=2))
    else:
        printing.decisions(lines, told)


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
    from sortal.runs import joining

    added, told = joining.merge(run, other)
    print(jsonlib.dumps([each.to_json() for each in added], indent=2)) if json else printing.joined(added, told)
