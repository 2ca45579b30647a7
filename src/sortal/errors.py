"""The errors Sortal raises deliberately. A message names the thing, the rule, the value and the way out."""

import errno
from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeAlias

Spelling: TypeAlias = Callable[[Mapping[str, object]], str]  # of settings in a front end


class Remedy:
    """A way out of an error: an action, and the settings that take it, with ... for a value the user chooses."""

    def __init__(self, action: str, **settings: object) -> None:
        self.action = action
        self.settings = settings


class SortalError(Exception):
    """Base of every error of this package; the command line prints it without a traceback.

    `message` names the thing, the rule and the value. Each front end spells the settings of `remedies` in its own way:
    force=True in Python, --force on the command line.
    """

    def __init__(self, message: str, *remedies: Remedy) -> None:
        super().__init__(message, *remedies)
        self.message = message
        self.remedies = remedies

    def __str__(self) -> str:
        def spell(settings: Mapping[str, object]) -> str:
            return ", ".join(f"{name}={'...' if value is ... else repr(value)}" for name, value in settings.items())

        return self.text(spell)

    def text(self, spell: Spelling) -> str:
        """Return the message and the remedies, with their settings as `spell` writes them."""
        ways = [f"{way.action} ({spell(way.settings)})" if way.settings else way.action for way in self.remedies]
        if not ways:
            return self.message
        *others, last = ways
        joined = f"{', '.join(others)}, or {last}" if others else last
        return f"{self.message} {joined[0].upper()}{joined[1:]}."


class InputError(SortalError, ValueError):
    """Invalid data or an invalid parameter. Also a `ValueError`, which users of scikit-learn catch."""


class NoSpaceError(SortalError):
    """No room is left on a disk. The input is not to blame: with more room, the same call works, or resumes."""


class ElsewhereError(SortalError):
    """Another process of the same run failed, and has said why."""


# Why an image cannot be read.
Reason = Literal[
    "missing",  # no such file, or a broken link
    "not a file",  # a folder, a pipe, a device
    "forbidden",  # no permission to read it
    "empty",
    "not an image",  # not in a supported format, whatever its extension
    "truncated",
    "damaged",
    "too large",  # over the limit of pixels
    "unsupported",  # an image in a colour mode without a defined RGB
    "unavailable",  # it exists, but reading it failed
    "no memory",  # not enough to decode it
    "timed out",  # decoding took too long
    "crashed",  # the process that decoded it died
]
# Reasons that hold for a content permanently; the others are worth another try.
LASTING: frozenset[Reason] = frozenset({"empty", "not an image", "truncated", "damaged", "too large", "unsupported"})
PERHAPS_NO_MEMORY = ("broken data stream", "could not create decoder object")  # JPEG and WebP report these then, too


class UnreadableError(SortalError):
    """An image cannot be decoded, for a reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    @property
    def lasting(self) -> bool:
        """Return whether every further attempt on this content would fail."""
        return self.reason in LASTING and not self.detail.startswith(PERHAPS_NO_MEMORY)


# Errors of the operating system: the disk is full, or this user or this file may not take more of it.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

NO_TEMPORARY = "There is no folder for temporary files. Set TMPDIR to one that can be written to."


def no_space(error: OSError, place: str, needed: str = "") -> NoSpaceError:
    """Return the error about a full disk: what could not be written, why, and the way out."""
    size = f" ({needed})" if needed else ""
    reason = (error.strerror or "no space left on device").rstrip(".")
    way_out = "Raise the limit on the size of files" if error.errno == errno.EFBIG else "Free some space"
    return NoSpaceError(
        f"Cannot write {place}{size}: {reason[0].lower()}{reason[1:]}. {way_out}, then run the same command to resume; "
        "or choose another folder."
    )


def quoted(value: object, longest: int = 1000) -> str:
    """Quote a value for a message: escape odd characters, show NumPy's text as text, and cut what is too long."""
    text = repr(str(value) if isinstance(value, str) else value)
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def listing(names: Collection[object], show: int = 3) -> str:
    """Quote the first few names, and count the others."""
    shown = [quoted(name) for _, name in zip(range(show), names, strict=False)]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
