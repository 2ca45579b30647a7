"""Weights on the Hugging Face hub. Neither torch nor timm is needed, so that a hub out of reach is reported at once."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from sortal.errors import InputError, Remedy

WEIGHTS_FILE = "model.safetensors"  # the usual one of a repository
HUB_PATIENCE = 4.0  # seconds in which the hub must answer
PATIENCE_VARIABLE = "HF_HUB_ETAG_TIMEOUT"  # the variable by which users of the hub set these seconds


class NoSuchFileError(InputError):
    """A file that a repository does not have."""


def cached(repository: str, file: str = WEIGHTS_FILE) -> Path | None:
    """Return a file of the hub that is on this machine; None if it is not."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, file)
    return Path(found) if isinstance(found, str) else None


def download(name: str, repository: str, file: str = WEIGHTS_FILE) -> Path:
    """Return the weights file of a model, which is downloaded unless it is on this machine."""
    from huggingface_hub import hf_hub_download

    if (found := cached(repository, file)) is not None:
        return found
    check_reachable(name, repository, file)
    try:
        with _quiet():
            return Path(hf_hub_download(repository, file))
    except Exception as error:  # networks and their libraries fail in many ways
        raise _unavailable(name, repository, file, first_line(error.__cause__ or error)) from None


def download_first(name: str, repository: str, files: Sequence[str]) -> Path:
    """Return the first of these files that a repository has, which is downloaded unless it is on this machine."""
    if found := [path for path in (cached(repository, file) for file in files) if path is not None]:
        return found[0]
    for file in files[:-1]:
        try:
            return download(name, repository, file)
        except NoSuchFileError:
            continue
    return download(name, repository, files[-1])


def check_any_reachable(name: str, repository: str, files: Sequence[str]) -> None:
    """Raise InputError within seconds if none of some files is on this machine or available from the hub."""
    for file in files[:-1]:
        try:
            check_reachable(name, repository, file)
        except NoSuchFileError:
            continue
        return
    check_reachable(name, repository, files[-1])


def check_reachable(name: str, repository: str, file: str = WEIGHTS_FILE) -> None:
    """Raise InputError within seconds if a file is neither on this machine nor available from the hub."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    if cached(repository, file) is not None:
        return
    if constants.HF_HUB_OFFLINE:
        raise _unavailable(name, repository, file, "HF_HUB_OFFLINE is set")
    seconds, problems = float(os.environ.get(PATIENCE_VARIABLE, HUB_PATIENCE)), list[Exception]()

    def ask() -> None:
        try:
            get_hf_file_metadata(hf_hub_url(repository, file), timeout=seconds)
        except Exception as error:
            problems.append(error)

    asking = Thread(target=ask, daemon=True)  # as looking up the name of a host has no time limit of its own
    with _quiet():
        asking.start()
        asking.join(seconds)
    if asking.is_alive() or any("Timeout" in type(error).__name__ for error in problems):
        reason = f"the hub did not answer within {seconds:g} s, the limit that {PATIENCE_VARIABLE} sets"
        raise _unavailable(name, repository, file, reason)
    for error in problems:
        found = _unavailable(name, repository, file, first_line(error.__cause__ or error))
        raise NoSuchFileError(found.message, *found.remedies) if "EntryNotFound" in type(error).__name__ else found


def _unavailable(name: str, repository: str, file: str, reason: str) -> InputError:
    how = f"download {file!r} of {repository!r} from the Hugging Face hub on another machine and pass it"
    return InputError(
        f"The weights of {name} are not on this machine and cannot be downloaded: {reason}.",
        Remedy(how, weights="FILE"),
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the hub's library from logging what our own error will say."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
