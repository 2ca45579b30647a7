"""What new images are compared with: the sure images of a run, or what a model brings instead of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.sample_run import sample_run

from sortal.errors import InputError
from sortal.runs.arrays import npy_parts
from sortal.runs.reference import REFERENCE, is_handed_over, reference_of
from sortal.runs.run import UNSURE


def test_images_of_a_moment_count_once_and_doubtful_later_ones_do_not_count(tmp_path: Path) -> None:
    run = sample_run(images=6, categories=2)
    status = run.assignments.status.copy()
    status[[4, 5]] = UNSURE
    a = replace(run.assignments, group=np.array([0, 0, 1, 2, 3, 4]), folders=np.array([0] * 5 + [1]), status=status)
    run = replace(run, folder=tmp_path, assignments=a)
    assert not is_handed_over(run)
    x = reference_of(run)
    assert len(x) == 4, "two are of a moment, and the last is a doubtful later one"
    np.testing.assert_array_equal(x[1:], run.features[[2, 3, 4]])


def test_a_model_without_images_brings_their_features(tmp_path: Path) -> None:
    run = replace(sample_run(), folder=tmp_path)
    rows = np.eye(3, 8, dtype=np.float32)
    (tmp_path / REFERENCE).write_bytes(b"".join(npy_parts(rows)))
    assert is_handed_over(run)
    np.testing.assert_array_equal(reference_of(run), rows)
    for damaged in (b"", b"".join(npy_parts(rows[:, :7])), b"".join(npy_parts(np.full_like(rows, np.nan)))):
        (tmp_path / REFERENCE).write_bytes(damaged)
        with pytest.raises(InputError, match=r"is damaged: reference\.npy"):
            reference_of(run)


def test_a_link_and_numbers_beyond_single_precision_are_refused(tmp_path: Path) -> None:
    run = replace(sample_run(), folder=tmp_path)
    (tmp_path / REFERENCE).write_bytes(b"".join(npy_parts(np.full((3, run.centres.shape[1]), 1e300))))
    with pytest.raises(InputError, match="too large"):
        reference_of(run)
    (tmp_path / REFERENCE).unlink()
    (tmp_path / REFERENCE).symlink_to(tmp_path / "missing")
    assert is_handed_over(run)
    with pytest.raises(InputError, match="is a link to"):
        reference_of(run)
