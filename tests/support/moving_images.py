"""Images that are replaced while a command reads them, and what must hold of them afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from support import tiny_folder
from support.swapping import IN_PLACE, KINDS, swap, swap_later
from support.world import Done, Trial

MOMENTS = ("open", "stat", "fstat", "before")  # at which an image is replaced
READABLE = ("other", "out")  # kinds that leave an image, if another one; links are followed, wherever they lead
LOST = tuple(kind for kind in KINDS if kind not in (*READABLE, *IN_PLACE, "forbidden"))  # that leave no file


def kinds_at(moment: str) -> tuple[str, ...]:
    """Return what can happen to an image at a moment; what is gone before is none."""
    return tuple(kind for kind in KINDS if moment != "before" or kind not in ("gone", "folder"))


class MovingImages:
    """Images of which some are replaced, one by each of the kinds."""

    def __init__(self, trial: Trial, kinds: Sequence[str], each: int = 10, like: Path | None = None) -> None:
        self.trial = trial
        self.place = trial.folder / "images"
        self.files = tiny_folder.planted() if like else tiny_folder.planted(each, each // 2)
        shutil.copytree(like, self.place) if like else tiny_folder.write(self.place, self.files)
        self.outside = tiny_folder.save(trial.folder / "outside.png", tiny_folder.picture("oak", 0))
        chosen = trial.random.sample([*self.files], len(kinds))
        self.kind_of = dict(zip(chosen, kinds, strict=True))
        self._before = {file: self._state(file) for file in self.files if file not in self.kind_of}

    def _state(self, file: str) -> tuple[bytes, int]:
        path = self.place / file
        return path.read_bytes(), path.stat().st_mtime_ns

    def attack(self, moment: str, *words: str | Path) -> Done:
        """Run a command during which files are replaced at a moment of their being read."""
        plan = {str(self.place / file): kind for file, kind in self.kind_of.items()}
        world, hook = self.trial.world, self.trial.folder / "hook"
        hook.mkdir()
        if moment == "before":
            for path, kind in plan.items():
                swap(path, kind, str(self.outside))
            return world.sortal(*words)
        return world.sortal(*words, before=swap_later, given=[plan, moment, str(self.outside), str(hook)])

    def check(self, moment: str, unreadable: dict[str, str]) -> None:
        """Check which files were unreadable, and that all others are as they were."""
        assert unreadable.keys() <= self.kind_of.keys(), unreadable.keys() - self.kind_of.keys()
        for file, kind in self.kind_of.items():
            must = kind in LOST if moment != "fstat" else kind in ("cut", "empty")
            may = must or kind in ("forbidden", *IN_PLACE)
            assert not must or file in unreadable, f"{kind} at {moment} was read"
            assert may or file not in unreadable, f"{kind} at {moment} was not read: {unreadable[file]}"
        for file, state in self._before.items():
            assert self._state(file) == state, f"{file} was changed"
        assert (
            self.outside.read_bytes()
            == tiny_folder.save(self.trial.folder / "same.png", tiny_folder.picture("oak", 0)).read_bytes()
        )


def own_run(trial: Trial) -> tuple[Path, MovingImages]:
    """Return a run of images that may be replaced, made from the one of the world."""
    folder = MovingImages(trial, [kind for kind in KINDS if kind not in ("gone", "folder")], like=trial.world.images)
    run = trial.world.copy_run(trial.folder / "run")
    facts = run / "run.json"
    facts.write_text(facts.read_text().replace(json.dumps(str(trial.world.images)), json.dumps(str(folder.place))))
    return run, folder
