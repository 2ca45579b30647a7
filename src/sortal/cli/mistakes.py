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
    Token,
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
    match error:
        case UnknownCommandError():
            return _unknown_command(str((error.unused_tokens or [""])[0]), _below(app, chain), command)
        case UnknownOptionError(token=token):
            option = token.keyword or token.value
            names = [name for each in error.argument_collection for name in each.names if name.startswith("--")]
            return f"{command} has no option {plain(option)}.{_suggestion(option, names)}"
        case UnusedCliTokensError():
            return f"{command} {_too_many(_below(app, chain), error.unused_tokens or ())}."
        case MissingArgumentError(argument=Argument() as argument):
            return _missing(argument, error.keyword, command)
        case CoercionError(argument=Argument() as argument, token=Token() as token):
            return _wrong_value(argument, token)
        case RepeatArgumentError(token=token):
            return f"{token.keyword} is given more than once. Give it once."
        case ValidationError(exception_message=message) if message:
            return message
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


def _unknown_command(token: str, app: App, command: str) -> str:
    names = [name for name in app if not name.startswith("-")]
    hint = _suggestion(token, names)
    if os.path.isdir(token) and "discover" in names:
        hint = f" To sort a folder: {command} discover {shlex.quote(token)}."
    return f"{command} has no command {token!r}.{hint} It has {', '.join(names)}."


def _too_many(app: App, tokens: Sequence[str]) -> str:
    named = [name_of(each) for each in app.assemble_argument_collection() if each.index is not None]
    extra = ", ".join(map(repr, tokens))
    return (
        f"takes {' '.join(named)} and options, but got {extra} as well" if named else f"takes options only, got {extra}"
    )


def _wrong_value(argument: Argument, token: Token) -> str:
    rule = Rule.of(argument.hint)
    rule = replace(rule, words=tuple(word for word in rule.words if word is not None))
    hint = _suggestion(token.value, [word for word in rule.words if isinstance(word, str)])
    return f"{token.keyword or name_of(argument)} must be {rule}, got {token.value!r}.{hint}"


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
