"""Room for a pixel store: in its budget and on the disk."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from sortal import segments
from sortal.errors import InputError

MARGIN = 2**26  # bytes that stay free on the disk
WAY_OUT = "or choose a smaller shorter_side"


def check(home: Path, sizes: Sequence[int], budget: int | None) -> None:
    """Images of these sizes in bytes must fit; nothing is written that cannot be finished.

    `home` is the folder of the settings; the budget is for the store around it, with all its settings.
    """
    needed, what = sum(sizes), f"{len(sizes):,} images more, resized for {home.name}"
    if budget is not None:
        stored = sum(map(_stored, home.parent.iterdir()))
        if stored + needed > budget:
            would_take, given = for_people(stored + needed, budget)
            raise InputError(
                f"The pixel store in {str(home.parent)!r} would take {would_take} ({what}); the budget is {given}. "
                f"Raise the budget, {WAY_OUT}."
            )
    free = shutil.disk_usage(home).free
    if needed > free - MARGIN:
        needs, has = for_people(needed + MARGIN, free)
        raise InputError(
            f"The pixel store in {str(home.parent)!r} needs {for_people(needed)[0]} more ({what}), and "
            f"{for_people(MARGIN)[0]} must stay free: {needs} together; the disk has {has} free. "
            f"Make room, use another folder, {WAY_OUT}."
        )


def _stored(home: Path) -> int:
    """Bytes of pixels that are there under some settings."""
    return sum(
        int(segments.sizes_of(segment.plan)[segment.done() != segments.PENDING].sum())
        for segment in segments.find(home)
    )


def for_people(*numbers: int) -> list[str]:
    """Numbers of bytes; to the byte where they would look the same, or like nothing."""
    texts = [f"{n / 1e9:,.1f} GB" if n >= 1e9 else f"{n / 1e6:,.1f} MB" for n in numbers]
    return texts if len(set(texts)) == len(texts) and "0.0 MB" not in texts else [f"{n:,} bytes" for n in numbers]
