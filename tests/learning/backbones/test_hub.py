"""Weights on the hub: one message, within seconds, whatever fails."""

import logging
from threading import Event
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest

from sortal.errors import InputError
from sortal.learning.backbones import hub
from sortal.learning.backbones.registry import load_backbone

pytestmark = pytest.mark.usefixtures("no_network")


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class SomeTimeout(Exception):  # noqa: N818  # as httpx names it
    pass


@pytest.mark.parametrize("fails", ["get_hf_file_metadata", "hf_hub_download"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Exception("\nthe server is down.\nat length"), "the server is down."),  # errors of Xet are not OSErrors
        (OSError(), "OSError."),
        (chained(RuntimeError("An error happened."), OSError(-2, "No such host")), "[Errno -2] No such host."),
    ],
)
def test_any_network_error_is_reported_once(
    error: Exception, reason: str, fails: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s")
        raise error

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", Mock())
    monkeypatch.setattr(huggingface_hub, fails, fail)
    with pytest.raises(InputError) as caught:
        load_backbone("test_vit")
    assert f" cannot be downloaded: {reason} Download 'model.safetensors' of 'timm/" in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_hub_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server may hang for longer than the hub's own time limit, which only counts from then on."""
    answer = Event()
    monkeypatch.setattr(hub, "HUB_PATIENCE", 0.01)
    for pending in (lambda *_, **__: answer.wait(60), Mock(side_effect=SomeTimeout("The read operation timed out"))):
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", pending)
        with pytest.raises(InputError, match=r": the hub did not answer within 0\.01 s, the limit that HF_HUB_ETAG"):
            load_backbone("test_vit")
    answer.set()
