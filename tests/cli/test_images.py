"""check and sample."""

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import NOTE, Stub, invoke, refused
from support.printed import BAD, lines_of

from sortal.cli import images
from sortal.images import check
from sortal.images.check import ClassCount, DuplicateKind, Duplicates, Health
from sortal.images.decoding import Quarantined


def counts(*images: int) -> tuple[ClassCount, ...]:
    """Make a class for each number except the last, the count of unlabelled images."""
    *known, unlabelled = images
    made = (ClassCount(name=f"class {at}", images=n, unreadable=0) for at, n in enumerate(known))
    return *made, ClassCount(name=None, images=unlabelled, unreadable=0)


NOTHING: dict[str, Any] = dict.fromkeys(("alike_names", "unreadable", "duplicates", "near_duplicates"), ())
NOTHING |= dict.fromkeys(("tiny", "rotated", "deep"), ())
HEALTHY = Health(images=1103, labelled=1102, classes=counts(2, 1100, 1), ignored=("notes.txt",), **NOTHING)
SMILE = check.ClassCount(name=":smile: дуб", images=3, unreadable=0)
HEALTH = replace(HEALTHY, classes=(SMILE, *HEALTHY.classes))


def duplicates(kind: DuplicateKind, **labels: str | None) -> Duplicates:
    """Make a group of duplicates from files and their labels."""
    return Duplicates(kind=kind, files=tuple(labels), labels=tuple(labels.values()))


def health_of(capsys: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    images.print_health(replace(HEALTHY, **changes), 32)
    return lines_of(capsys)


def test_check_prints_text_or_json_and_exits_by_the_worst_finding(stub: Stub, pets: Path) -> None:
    stub("sortal.images.check.check", HEALTH)
    done = invoke("check", pets)
    assert (done.code, done.err) == (0, NOTE)
    assert ":smile: дуб  " in done.out
    assert r":smile: \u0434\u0443\u0431  " in invoke("check", pets, encoding="ascii").out
    bad = replace(HEALTH, unreadable=(Quarantined("dog/2\n[red].jpg", "empty", "0 bytes"),))
    stub("sortal.images.check.check", bad)
    done = invoke("check", pets, "--json")
    assert (done.code, json.loads(done.out)) == (3, json.loads(json.dumps(asdict(bad))))
    twice = check.Duplicates(kind="two labels", files=("a", "b"), labels=("x", "y"))
    stub("sortal.images.check.check", replace(bad, duplicates=(twice,)))
    assert invoke("check", pets).code == 1, "which takes precedence over an unreadable file"


def test_check_options_reach_the_library(stub: Stub, pets: Path) -> None:
    asked = stub("sortal.images.check.check", HEALTH)

    def checked(*tokens: object) -> tuple[dict[str | None, int], dict[str, Any]]:
        """Return the images per class and the other options passed to the library."""
        assert invoke("check", pets, *tokens).code == 0
        options = asked.pop()
        images = options.pop("images")
        counts = {name: int((images.labels == at).sum()) for at, name in enumerate(images.classes)}
        return {**counts, None: int((images.labels < 0).sum())}, options

    usual = {"tiny": check.TINY_BELOW, "max_pixels": 80_000_000}
    assert checked() == ({"cat": 2, "dog": 1, None: 1}, usual)
    chosen = {"tiny": 41, "max_pixels": 1599, "workers": 1}
    assert checked("--tiny", 41, "--max-pixels", 1599, "--workers", 1)[1] == chosen
    classes = ("--placeholders", "classes")
    assert checked("--unlabelled", "dog", *classes)[0] == {"cat": 2, "unlabelled": 1, None: 1}
    assert checked("--unlabelled", "dog", "--placeholders", "unlabelled")[0] == {"cat": 2, None: 2}
    assert checked("--folders", "ignore")[0] == {None: 4}

    table = pets / "labels.csv"
    table.write_text("file_name,label,who\ncat/1.png,tom,me\ncat/2.png,,me\n")
    tokens: list[object] = ["--labels", table]
    complaint = refused("check", pets, *tokens)
    assert "2 have none: 'dog/1.png', 'unlabelled/x.png'" in complaint
    assert "as unlabelled (--unlisted unlabelled), or leave them out (--unlisted ignore)." in complaint
    assert checked(*tokens, "--unlisted", "unlabelled")[0] == {"tom": 1, None: 3}
    refusing = [*tokens, "--extra-columns", "error", "--unlisted", "unlabelled"]
    assert "(--extra-columns keep)" in refused("check", pets, *refusing), "as a command-line option"
    table.write_text("file_name,label\nunlisted='x'.jpg,a\n")
    assert "does not: \"unlisted='x'.jpg\"." in refused("check", pets, *tokens), "a file name is not rewritten"


def test_the_health_of_images_is_printed_for_few_many_and_no_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert health_of(capsys) == [
        "1,103 images: 1,102 labelled in 2 classes, 1 unlabelled.",
        "",
        "Class          Images",
        "─────────────────────",
        "class 0             2",
        "class 1         1,100",
        "(unlabelled)        1",
        "",
        "Ignored, not pictures: 1",
        "  notes.txt",
        "",
        "No problems found.",
        "",
    ]
    cats = {f"cat/{number}": "cat" for number in (1, *range(10, 20))}
    group = duplicates("two labels", **cats, **{"dog/x": "dog", "y\n": None})
    ill = health_of(
        capsys,
        labelled=1103,
        classes=(ClassCount(name="class 0", images=1103, unreadable=3), ClassCount(name=None, images=0, unreadable=0)),
        alike_names=(("Oak", "oak "),),
        unreadable=BAD[:3],
        duplicates=(group, duplicates("same", a="cat", b="cat")),
        near_duplicates=(duplicates("labelled and unlabelled", c="cat", d=None),),
        tiny=("t.png",),
        rotated=tuple(f"{number}.jpg" for number in range(1103)),
        deep=tuple(f"{number}.png" for number in range(11)),
    )
    assert [line for line in ill if line] == [
        "1,103 images: 1,103 labelled in 1 class, 0 unlabelled. 3 are unreadable.",
        "Class     Images   Unreadable",
        "─────────────────────────────",
        "class 0    1,103            3",
        "Only one class is labelled; sortal discover then goes by looks alone; labels of two classes or more tell it "
        "which differences matter.",
        "Classes whose names differ only in case and spaces: 1",
        "  Oak = oak",
        "Images with two labels (exit code 1), which a run ignores; keep one copy of each: 1",
        "  cat/1 (cat) = dog/x (dog) = y\\n (unlabelled) = cat/10 (cat) and 9 more",
        "Unreadable, left out of every run (exit code 3): 3",
        "  empty: 0 bytes",
        *(f"    {number}.jpg" for number in range(3)),
        "Duplicates: 1",
        "  a (cat) = b (cat)",
        "Near-duplicates, labelled and unlabelled: 1",
        "  c (cat) ≈ d (unlabelled)",
        "Tiny, shorter side below 32 pixels: 1",
        "  t.png",
        "Rotated by EXIF, shown upright: all 1,103",
        "More than 8 bits per channel, scaled to 8: 11",
        *(f"  {number}.png" for number in range(10)),
        "  … and 1 more; --json lists all",
        "Ignored, not pictures: 1",
        "  notes.txt",
    ]

    lines = health_of(capsys, classes=counts(*range(1, 31), 5))
    rows = [line.split() for line in lines[4:29]]
    assert rows[0] == ["class", "29", "30"]
    assert rows[11] == ["…", "7", "more", "classes", str(13 + 14 + 15 + 16 + 17 + 18 + 19)]
    assert rows[23:] == [["class", "0", "1"], ["(unlabelled)", "5"]]
    assert sum(int(row[-1]) for row in rows[:24]) == sum(range(31))
    assert len(health_of(capsys, classes=counts(*range(24), 5))) == len(lines), "24 classes are all listed"
    lines = health_of(capsys, labelled=0, classes=counts(7), near_duplicates=None)
    assert "No image is labelled. Put the images of a class into a folder named after it, or pass" in lines[6]
    assert lines[8].startswith("sortal discover then goes by looks alone")
    assert "Too many images to search for near-duplicates." in lines
    assert "No problems found." not in lines
    lines = health_of(capsys, labelled=5, classes=counts(5, 2))
    assert any(line.startswith("Only one class is labelled; ") for line in lines)
    assert "No problems found." not in lines
    lines = health_of(capsys, ignored=("a/1.heic", "b.CR2", "c.txt"))
    assert [line for line in lines if " ignored, " in line] == [
        "1 picture is ignored, in a format that is not read here (.heic): 'a/1.heic'. To read them, pip install "
        "pillow-heif.",
        "1 picture is ignored, in a format that is not read here (.cr2): 'b.CR2'. To read them, save them as JPEG.",
    ]
    assert lines[lines.index("Ignored, not pictures: 1") + 1 :] == ["  c.txt", ""]
    assert "No problems found." not in lines


def test_sample_writes_digits_and_suggests_how_to_check_them(tmp_path: Path) -> None:
    out = tmp_path / "my digits"
    done = invoke("sample", "digits", out, "--labelled", "0.25", "--seed", "3")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == f"Wrote 1,797 images and labels.csv to {out}. Check them with:"
    message = invoke(*shlex.split(lines[1])[1:]).out
    assert "1,797 images: 225 labelled in 5 classes, 1,572 unlabelled." in message
    assert "must be new or empty" in refused("sample", "digits", out)
