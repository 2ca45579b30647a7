"""Hostile text: markup, formulas, paths, control characters, code, and text without an end; and tables of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from random import Random

ELSEWHERE = "https://elsewhere.invalid"
MARKUP = (
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit = 1">',
    "' onmouseover='window.hit = 1' x='",
    "javascript:window.hit=1",
    "</script><script>window.hit = 1</script>",
    "</style><style>* { display: none }",
    "</title></textarea></svg><svg/onload=window.hit=1>",
    "<!--",
    "<!--<script>",
    "]]><x/>",
    "&lt;b&gt;&amp;&#0;&#x202e;",
    "{{ 7 * 7 }}{% raw %}{# x #}",
    "${window.hit = 1}",
    '<iframe srcdoc="<script>parent.hit = 1</script>"></iframe>',
    f'<base href="{ELSEWHERE}/">',
    f"<link rel=stylesheet href={ELSEWHERE}/x.css>",
    f'<meta http-equiv=refresh content="0;url={ELSEWHERE}/">',
    f"<img src={ELSEWHERE}/x.png>",
    f"url({ELSEWHERE}/x.png)",
    f"<form action={ELSEWHERE}><button autofocus>",
    "<dialog open><input id=name name=data></dialog>",
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
)
FORMULAS = (
    "=1+1",
    "+1",
    "-1",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "'=1",
    "''",
    '"=1',
    " =1",
    ";=1",
    ",=1",
    '=cmd|"/c calc"!A0',
    f'=HYPERLINK("{ELSEWHERE}","x")',
    "\uff1d1",
    "\uff20x",
    "00123",
    "1e5",
    "NA",
    "null",
    "TRUE",
)
PATHS = (
    "../../../etc/passwd",
    "/etc/passwd",
    "C:\\Windows\\x",
    "\\\\host\\share",
    "..",
    ".",
    "CON",
    "nul.txt",
    "com\u00b9",
    "a/b",
    "a/../../b",
    "trailing. ",
    "~",
    "-rf",
    ".hidden",
    "a\0b",
    "unsure",
    "UNSURE",
    "index.csv",
    ".sortal-export.json",
)
CONTROLS = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    f"\x1b]8;;{ELSEWHERE}\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[H",
    "\x9b2J",
    "\x90q\x9c",
    "a\bb",
    "over\rwritten",
    "two\nlines",
    "bell\x07",
    "\x00",
    "\x7f",
    "\x85\x0b\x0c\x1c",
    "\u202egnp.exe",
    "\u2066isolated",
    "zero\u200bwidth\u200d",
    "\ufeffmark",
    "\u2028a\u2029b",
    "soft\u00adhyphen",
    "\U000e0041\U000e0042",
    "byte\udcff",
    "lone\ud800",
    "\udc00\ud800",
    "\ufffe\uffff",
    "\ue000",
)
CODE = (
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "{0.__class__}{}",
    "{name!r:>99999999}",
    "%s%n%x%(a)s%",
    "$(touch hit)",
    "`touch hit`",
    "; touch hit #",
    "' OR 1=1 --",
    "!!python/object/apply:os.system [touch hit]",
    "&a [*a, *a]",
    "[red]bold[/red][link=x]",
    ":smile:",
    "(a+)+$",
    ".*",
    "[",
    "\\",
    "\\u0041\\x1b",
    "$\\frac{",
    "$\\input{/etc/passwd}$",
    "_",
    "^",
    "$",
    '"',
    "|",
    "new 1",
    " spaces ",
    "\u05e9\u05dc\u05d5\u05dd",
    "Z\u0351\u036b\u0343\u036aa\u0303\u0357l\u034bg\u0360o",
)
MUCH = 100_000  # characters
LONG = (
    "x" * MUCH,
    "long " * (MUCH // 5),
    "<" * MUCH,
    "=" * MUCH,
    "../" * (MUCH // 3),
    "\x1b[1m" * (MUCH // 4),
    "\u202e" * MUCH,
    "z" + "\u0301" * (MUCH - 1),
    "\U0001f3f4\u200d\u2620\ufe0f" * (MUCH // 4),
    "\udcff" * MUCH,
    "$" * MUCH,
    "{" * MUCH,
    "&amp;" * (MUCH // 5),
    "\n" * MUCH,
    "9" * MUCH,
)
BEGINNINGS = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")  # characters that begin a formula, for some program
SHORT = MARKUP + FORMULAS + PATHS + CONTROLS + CODE
ALL = SHORT + LONG


def draw(random: Random, count: int, *, at: int = 0, fits: Callable[[str], bool] = lambda text: True) -> list[str]:
    """Return so many different texts that fit: one of each kind first, that of number `at`; some of several parts."""
    kinds = (MARKUP, FORMULAS, PATHS, CONTROLS, CODE, LONG)
    found: dict[str, None] = {}
    while len(found) < count:
        kind = kinds[len(found) % len(kinds)]
        text = kind[at % len(kind)] if len(found) < len(kinds) else random.choice(ALL)
        if text in found or random.random() < 0.2:
            text = "".join(random.choice(SHORT) for _ in range(random.randint(1, 4))) + random.choice(("", " ", text))
        if fits(text):
            found[text] = None
        at += 1
    return [*found]


def is_utf8(text: str) -> bool:
    """Tell whether text can be written in UTF-8, of which surrogates are no part."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def is_name(text: str) -> bool:
    """Tell whether a class can have this name: surrogates must stand for bytes, as in the names of folders."""
    return not any("\ud800" <= each <= "\udfff" and not "\udc80" <= each <= "\udcff" for each in text)


def is_file_name(text: str) -> bool:
    """Tell whether a file or folder can have this name."""
    if not is_name(text):
        return False
    length = len(text.encode("utf-8", "surrogateescape"))
    return 0 < length <= 200 and not {"/", "\0"} & {*text} and text not in (".", "..")


# What must hold of tables, whatever text they hold


def no_formula(path: Path) -> None:
    """Fail if a cell of a table is a formula to a spreadsheet; text is quoted, and what is not quoted is a number."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    limit = csv.field_size_limit(len(text) + 1)
    try:
        for row in csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONNUMERIC, strict=True):
            bad = [cell for cell in row if isinstance(cell, str) and cell.startswith(BEGINNINGS)]
            assert not bad, f"{path.name} has the cells {[cell[:80] for cell in bad]}"
    finally:
        csv.field_size_limit(limit)
