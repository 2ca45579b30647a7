"""Mistakes on the command line, in words: what is wrong, the rule, and the way out."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from cyclopts import (
    App,
    Argument,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)
from cyclopts.exceptions import UnknownCommandError

from sortal.config import Rule
from sortal.system.text import plain


def explain(error: CycloptsError, app: App) -> str:
    """Say what is wrong with a command line, and where to read on."""
    chain = tuple(error.command_chain or ())
    command = " ".join((*app.name, *chain))
    return f"{_explain(error, app, chain, command)} See {command} --help."


def _explain(error: CycloptsError, app: App, chain: Sequence[str], command: str) -> str:
    if isinstance(error, UnknownCommandError):
        return _unknown_command(str((error.unused_tokens or [""])[0]), app, chain, command)
    if isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        names = [name for argument in error.argument_collection for name in argument.names if name.startswith("--")]
        return f"{command} has no option {plain(option)}.{_suggestion(option, names)}"
    if isinstance(error, UnusedCliTokensError):
        named = [name_of(each) for each in _below(app, chain).assemble_argument_collection() if each.index is not None]
        extra = ", ".join(map(repr, error.unused_tokens or ()))
        takes = (
            f"takes {' '.join(named)} and options, but got {extra} as well"
            if named
            else f"takes options only, got {extra}"
        )
        return f"{command} {takes}."
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return _missing(error.argument, error.keyword, command)
    if isinstance(error, CoercionError) and error.argument is not None and error.token is not None:
        rule = Rule.of(error.argument.hint)
        rule = replace(rule, words=tuple(word for word in rule.words if word is not None))
        name, value = error.token.keyword or name_of(error.argument), error.token.value
        return (
            f"{name} must be {rule}, got {value!r}.{_suggestion(value, [w for w in rule.words if isinstance(w, str)])}"
        )
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given more than once. Give it once."
    if isinstance(error, ValidationError) and error.exception_message:
        return error.exception_message
    return str(error)


def whole_numbers(arguments: ArgumentCollection) -> None:
    """Refuse fractions where a setting is a whole number, which cyclopts would round."""
    for argument in arguments:
        rule = Rule.of(argument.hint)
        for token in argument.tokens:
            if rule.number is int and not rule.text and "." in token.value:
                raise ValueError(f"{token.keyword or name_of(argument)} must be {rule}, got {token.value!r}.")


def name_of(argument: Argument) -> str:
    """Name an argument as help does: IMAGES by position, --format otherwise."""
    return argument.name.lstrip("-").upper() if argument.index is not None else argument.name


def _below(app: App, chain: Sequence[str]) -> App:
    for name in chain:
        app = app[name]
    return app


def _unknown_command(token: str, app: App, chain: Sequence[str], command: str) -> str:
    names = [name for name in _below(app, chain) if not name.startswith("-")]
    sort_it = (
        f" To sort a folder: {command} discover {shlex.quote(token)}." if os.path.isdir(token) and not chain else ""
    )
    return f"{command} has no command {token!r}.{sort_it or _suggestion(token, names)} It has {', '.join(names)}."


def _missing(argument: Argument, keyword: str | None, command: str) -> str:
    given = keyword or next((token.keyword for token in argument.tokens if token.keyword), None)
    meaning = (argument.parameter.help or "").strip()
    if given:
        return f"{given} needs a value: {meaning[:1].lower()}{meaning[1:]}"
    rule = Rule.of(argument.hint)
    are_choices = bool(rule.words) and all(isinstance(word, str) for word in rule.words)
    rest = f", which must be {rule}." if are_choices else f": {meaning[:1].lower()}{meaning[1:]}"
    return f"{command} needs {name_of(argument)}{rest}"


def _suggestion(word: str, among: Sequence[str]) -> str:
    near = get_close_matches(word, among, n=1, cutoff=0.7)  # gpu is not meant as cpu
    return f" Did you mean {near[0]}?" if near else ""
