"""Runs with decisions: loaded as reviewed or as sorted, and saved with their journal put aside."""

from __future__ import annotations

import numpy as np
import pytest
from support.decisions import (
    apply,
    assert_consistent,
    contents,
    files_of,
    note,
    some,
)

from sortal.errors import InputError
from sortal.reviews.actions import (
    Create,
    Merge,
    Move,
    Reject,
    Rename,
    Undo,
)
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import DECISIONS, Run


def test_a_loaded_run_is_the_reviewed_one_unless_the_raw_one_is_asked_for(saved: Run) -> None:
    images = some(saved, 4, 3)
    lines = note(saved, Move(images=images, category=1), Rename(category=5, name="fern"))
    found = load_run(saved.folder)
    assert files_of(found) == files_of(apply(saved, [each.action for each in lines]))
    assert found.decisions == 2
    assert files_of(load_run(saved.folder, raw=True)) == files_of(saved)
    note(saved, Undo(), Undo())
    assert files_of(load_run(saved.folder)) == files_of(saved)
    assert found.to_pandas().reviewed.value_counts().to_dict() == {"no": 69, "moved": 3}


def test_saving_a_reviewed_run_puts_its_journal_aside(saved: Run) -> None:
    note(saved, Rename(category=5, name="fern"))
    found = load_run(saved.folder)
    note(saved, Reject(images=some(saved, 4, 1), category=4))
    with pytest.raises(InputError, match="has 2 decisions, of which this state takes 1 into account"):
        save_run(found)
    found = load_run(saved.folder)
    save_run(found)
    assert not (saved.folder / DECISIONS).exists()
    assert (saved.folder / "decisions-1.jsonl").read_text().count("\n") == 3
    again = load_run(saved.folder)
    assert files_of(again) == files_of(found)
    assert again.rejected
    note(again, Rename(category=5, name="moss"))
    save_run(load_run(saved.folder))
    assert (saved.folder / "decisions-2.jsonl").exists()
    assert load_run(saved.folder).names[5] == "moss"


def test_an_emptied_category_is_gone_and_its_id_is_not_used_again(saved: Run) -> None:
    everything = contents(saved, np.flatnonzero(saved.assignments.category_id == 5))
    note(saved, Create(images=everything[:2], category=6, name="fern"), Merge(categories=(4, 6)))
    note(saved, Move(images=everything, category=1))
    found = load_run(saved.folder)
    assert 5 not in found.names
    assert_consistent(found)
    save_run(found)
    assert load_run(saved.folder).facts.next_id == 7
