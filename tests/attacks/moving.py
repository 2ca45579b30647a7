"""Files that vanish, change, grow, or become pipes, sockets, devices, folders and links while they are read."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support import tiny_folder

from attacks.attack import OPTIONS, Attack, Done, Trial, case
from attacks.swapping import IN_PLACE, KINDS, make, remove, swap, swap_later

READABLE = ("other", "out")  # kinds that leave an image, if another one; links are followed, wherever they lead
LOST = tuple(kind for kind in KINDS if kind not in (*READABLE, *IN_PLACE, "forbidden"))  # that leave no file


def moments() -> tuple[str, ...]:
    return ("open", "stat", "fstat", "before")


def kinds_at(moment: str) -> tuple[str, ...]:
    """Return what can happen to an image at a moment; what is gone before is none."""
    return tuple(kind for kind in KINDS if moment != "before" or kind not in ("gone", "folder"))


class Folder:
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


def check_images(trial: Trial) -> int:
    """Replace images while `check` reads them."""
    moment = case(trial, moments())
    folder = Folder(trial, kinds_at(moment))
    done = folder.attack(moment, "check", folder.place, "--json", "--workers", "1").check(0, 1, 3)
    found = json.loads(done.out)
    assert found["images"] == len(folder.files)
    folder.check(moment, {each["file"]: f"{each['reason']}: {each['detail']}" for each in found["unreadable"]})
    return len(folder.kind_of)


def discover_images(trial: Trial) -> int:
    """Replace images while `discover` reads them, then learns: every file ends up either sorted or in quarantine."""
    moment = case(trial, moments())
    folder, out = Folder(trial, kinds_at(moment), each=8), trial.folder / "run"
    folder.attack(moment, "discover", folder.place, "--out", out, *OPTIONS).check(0, 3)
    bad = {row["file_name"]: f"{row['reason']}: {row['detail']}" for row in tiny_folder.rows_of(out / "quarantine.csv")}
    files = [row["file_name"] for row in tiny_folder.rows_of(out / "assignments.csv")]
    assert sorted([*files, *bad]) == sorted(folder.files)
    folder.check(moment, bad)
    return len(folder.kind_of)


def predict_images(trial: Trial) -> int:
    """Replace images while `predict` reads them: all others are sorted as if nothing had happened."""
    moment = case(trial, moments())
    folder, table = Folder(trial, kinds_at(moment)), trial.folder / "table.csv"
    before, after = (trial.world.copy_run(trial.folder / name) for name in ("run", "same run"))  # each with a cache
    options = (folder.place, "--workers", "1", "--csv")
    trial.world.sortal("predict", before, *options, trial.folder / "before.csv").check(0)
    folder.attack(moment, "predict", after, *options, table).check(0, 3)
    expected, found = (
        {row["file_name"]: (row["category"], float(row["confidence"] or "nan")) for row in tiny_folder.rows_of(path)}
        for path in (trial.folder / "before.csv", table)
    )
    folder.check(moment, dict.fromkeys(expected.keys() - found.keys(), "not in the table"))
    for file in expected.keys() - folder.kind_of.keys():
        # Which images share a batch may change the last bits.
        assert found[file][0] == expected[file][0], file
        assert abs(found[file][1] - expected[file][1]) < 1e-3, file
    return len(folder.kind_of)


# Exports


FORMATS = ("folders", "coco", "imagefolder", "fiftyone", "labelstudio", "csv", "parquet")


def export_images(trial: Trial) -> int:
    """Replace images of a run while they are exported: what is exported is a file, and only files are left out."""
    moment = case(trial, ("open", "before", "stat", "fstat"))
    format_ = FORMATS[trial.number // 4 % len(FORMATS)] if trial.number else "folders"
    how = trial.random.choice(("hardlink", "copy")) if trial.number else "hardlink"
    run, folder = own_run(trial)
    out = trial.folder / f"exported.{format_}"
    done = folder.attack(moment, "export", run, "--format", format_, "--out", out, "--how", how).check(0, 3)
    for place, folders, files in os.walk(out):
        for name in (*folders, *files):
            mode = os.lstat(os.path.join(place, name)).st_mode
            assert stat.S_ISDIR(mode) if name in folders else stat.S_ISREG(mode), f"{name} was exported"
    left_out = sum(line.strip().startswith(("missing", "…")) for line in done.out.splitlines())
    assert (done.code == 3) == bool(left_out), done.out
    return len(folder.kind_of)


def own_run(trial: Trial) -> tuple[Path, Folder]:
    """Return a run of images that may be replaced, made from the one of the world."""
    folder = Folder(trial, [kind for kind in KINDS if kind not in ("gone", "folder")], like=trial.world.images)
    run = trial.world.copy_run(trial.folder / "run")
    facts = run / "run.json"
    facts.write_text(facts.read_text().replace(json.dumps(str(trial.world.images)), json.dumps(str(folder.place))))
    return run, folder


# Everything else that a command reads or writes


def _inputs(trial: Trial, place: Path) -> tuple[tuple[str | Path, ...], ...]:
    """Return commands in which `place` is something to read, or to write."""
    images, out = trial.world.images, trial.folder / "out"
    run = trial.world.copy_run(trial.folder / "run")
    return (
        ("check", images, "--labels", place.with_suffix(".csv")),
        ("check", images, "--labels", place.with_suffix(".jsonl")),
        ("check", images, "--labels", place.with_suffix(".parquet")),
        ("check", place),
        ("check", images, place),
        ("discover", place, "--out", out, *OPTIONS),
        ("discover", images, "--labels", place.with_suffix(".tsv"), "--out", out, *OPTIONS),
        ("discover", images, "--out", out, *OPTIONS[2:], "--backbone", place.with_suffix(".json")),
        ("discover", images, "--out", out, *OPTIONS[2:], "--backbone", "resnet18", "--weights", place),
        ("discover", images, "--out", place, *OPTIONS),
        ("predict", place, images),
        ("predict", run, place),
        ("predict", run, images, "--csv", place),
        ("export", place, "--format", "csv", "--out", out),
        ("export", run, "--format", "csv", "--out", place),
        ("export", run, "--format", "folders", "--out", place),
        ("export", run, "--format", "folders", "--out", place, "--force"),
        ("import", run, place.with_suffix(".json")),
        ("import", run, place.with_suffix(".csv")),
        ("import", run, place),
        ("import", place, images),
        ("decisions", place),
        ("decisions", "merge", run, place),
        ("report", place),
        ("figures", place),
        ("figures", run, "--which", "k-curve", "--out", place),
        ("review", place, "--no-browser"),
        ("review", run, "--no-browser", "--words", place),
        ("review", run, "--no-browser", "--words", place, "--text-model", place),
    )  # fmt: skip


def replace_inputs(trial: Trial) -> int:
    """Give every command pipes, sockets, devices, folders and links where it expects a file or a folder."""
    kind = case(trial, ("pipe", "device", "socket", "loop", "folder", "full", "dangling", "stdin", "null"))
    place = trial.folder / "place"
    commands = _inputs(trial, place)
    if trial.number == 0:
        commands = tuple(commands[at] for at in sorted(trial.random.sample(range(len(commands)), 12)))
    for words in commands:
        (thing,) = {word for word in words if isinstance(word, Path) and word.stem == place.stem}
        make(str(thing), kind, "")
        before = os.lstat(thing)
        done = trial.world.sortal(*words).check(0, 2)
        named = any(repr(each) in done.err for each in (str(thing), os.path.realpath(thing)))
        assert done.code == 0 or named, f"{words}\n{done.err}"
        if done.code == 2:
            assert os.path.samestat(os.lstat(thing), before), words
        remove(str(thing))
        for written in ("out", "no-such-file"):  # where a dangling link leads
            remove(str(trial.folder / written))
    return len(commands)


def replace_run_files(trial: Trial) -> int:
    """Put pipes, devices and links in the places of the files of a run, then use it: it is damaged, or does without."""
    kind = case(trial, ("pipe", "device", "loop", "socket", "folder", "full"))
    run = trial.world.copy_run(trial.folder / "run")
    names = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    names += ["decisions.jsonl", ".sortal-next/commit.json", "head.npy", "rejected.csv"]
    chosen = trial.random.sample(names, 6 if trial.number == 0 else len(names))
    for name in chosen:
        path, aside = run / name, trial.folder / "aside"
        path.parent.mkdir(exist_ok=True)
        existed = path.exists()
        if existed:
            os.rename(path, aside)
        make(str(path), kind, "")
        words = trial.random.choice((("export", run, "--format", "csv"), ("decisions", run), ("report", run)))
        done = trial.world.sortal(*words, cwd=trial.folder).check(0, 2)
        assert done.code == 0 or repr(str(run))[:-1] in done.err, f"{name}\n{done.err}"
        remove(str(trial.folder / "run.csv"))
        remove(str(path))
        if existed:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.rename(aside, path)
    return len(chosen)


def cut_later(path: str, calls: int) -> None:
    """In a command: cut a file before the pixels of a store are read for the nth time.

    Reads take turns here. One that is under way in another thread at that moment cannot be saved.
    """
    from sortal.images.store.pixel_store import PixelStore

    left, turn = calls, threading.RLock()

    def cutting(read: Callable[..., Any]) -> Callable[..., Any]:
        def taking_turns(*values: Any, **named: Any) -> Any:
            nonlocal left
            with turn:
                left -= 1
                if not left:
                    os.truncate(path, 0)
                return read(*values, **named)

        return taking_turns

    for name in ("crops", "image", "thumbnails"):
        setattr(PixelStore, name, cutting(getattr(PixelStore, name)))


def cut_store(trial: Trial) -> None:
    """Cut the pixels that a command has mapped into memory: it ends with a message, and the next one starts afresh."""
    run = trial.world.copy_run(trial.folder / "run")
    (pixels,) = run.glob("cache/pixels/*/pixels.bin")
    words: tuple[str | Path, ...] = ("discover", trial.world.images, "--out", run, *OPTIONS, "--seed", "1")
    calls = 2 + trial.number % 40
    done = trial.world.sortal(*words, before=cut_later, given=[str(pixels), calls]).check(0, 2)
    assert done.code == 0 or repr(str(pixels)) in done.err, done.err
    trial.world.sortal(*words).check(0)


def cut_tokens_later(folder: str, calls: int) -> None:
    """In a command: cut the file of cached tokens before it is used for the nth time."""
    from sortal.learning import token_cache
    from sortal.system import mapped_arrays

    left = calls

    def cut_once(*values: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            (path,) = Path(folder).rglob(token_cache.TOKENS)
            os.truncate(path, os.path.getsize(path) // 2)
        mapped_arrays.check_whole(*values)

    setattr(token_cache, "check_whole", cut_once)  # noqa: B010


def cut_tokens(trial: Trial) -> None:
    """Cut the file of tokens while they are computed or learned from: a message says so, and the next run is whole."""
    out, calls = trial.folder / "run", 1 + trial.number % 8
    backbone = ("--backbone", "test_vit", "--weights", "random")
    words: tuple[str | Path, ...] = ("discover", trial.world.images, "--out", out, *backbone, *OPTIONS[2:])
    done = trial.world.sortal(*words, before=cut_tokens_later, given=[str(out), calls]).check(0, 2)
    assert calls > 1 or done.code == 2, "the tokens are in a file"
    assert done.code == 0 or "tokens.bf16" in done.err, done.err
    trial.world.sortal(*words).check(0)


ATTACKS = (
    Attack("moving", "check", check_images, quick=1, least=40),
    Attack("moving", "discover", discover_images, quick=1, least=16),
    Attack("moving", "predict", predict_images, quick=1, least=16),
    Attack("moving", "export", export_images, quick=1, least=28),
    Attack("moving", "inputs", replace_inputs, quick=1, least=9),
    Attack("moving", "run files", replace_run_files, quick=1, least=12),
    Attack("moving", "store", cut_store, quick=1, least=20),
    Attack("moving", "tokens", cut_tokens, quick=0, least=5),
)
