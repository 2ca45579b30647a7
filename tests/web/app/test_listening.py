"""The addresses that a review is reached by."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.reviews import Client, saved_run, serving, session_of, token_of

from sortal.errors import InputError
from sortal.runs.run import Run
from sortal.web.app.listening import check_certificate
from sortal.web.app.server import Server


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return saved_run(tmp_path / "a run")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def follow(client: Client) -> int:
    """Follow a link as browsers do, which spell an address in their own way; return the code of the answer."""
    link = urlsplit(client.server.link())
    assert link.hostname
    family = socket.AF_INET6 if ":" in link.hostname else socket.AF_INET
    written = socket.inet_ntop(family, socket.inet_pton(family, link.hostname))
    host = f"[{written}]:{link.port}" if ":" in written else f"{written}:{link.port}"
    body = token_of(link.geturl())
    head = f"POST /api/enter HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((written, client.server.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        return int(connection.recv(4096).split()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "127.1", "0x7f000001"])
def test_a_link_names_the_very_address_that_is_listened_on(run: Run, host: str) -> None:
    """A name may lead elsewhere: browsers try ::1 for localhost, where another user may wait for the token."""
    with serving(session_of(run), host=host) as client:
        assert client.server.link().startswith(f"http://127.0.0.1:{client.server.port}/#token=")
        assert follow(client) == 200
        for name in ("localhost", "127.0.0.1", host):
            assert client.ask("GET", "/", Host=f"{name}:{client.server.port}").code == 200


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6")
@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"])
def test_a_link_spells_ipv6_as_browsers_do(run: Run, host: str) -> None:
    with serving(session_of(run), host=host) as client:
        assert follow(client) == 200


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", pytest.param("::", marks=pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6"))]
)
def test_a_review_for_every_address_is_reached_by_each_of_them_and_by_no_other_name(run: Run, host: str) -> None:
    with serving(session_of(run), host=host) as client:
        port = client.server.port
        assert urlsplit(client.server.link()).hostname == socket.gethostname().lower()
        token = token_of(client.server.link())
        # This computer has all addresses of 127.0.0.0/8, which no list of its own names.
        for name, code in (("127.0.0.2", 200), ("127.0.0.3", 403), ("evil.example", 403)):
            given = f"GET / HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n"
            try:
                connection = socket.create_connection(("127.0.0.2", port), timeout=60)
            except OSError:
                pytest.skip("this computer has one address only")
            with connection:
                connection.sendall(given.encode())
                assert int(connection.recv(4096).split()[1]) == code, name
        assert client.ask("POST", "/api/enter", token).code == 200


@pytest.mark.parametrize(
    "host", ["", " ", "<broadcast>", "255.255.255.255", "224.0.0.1", "\udcff", "a..b", "no.invalid"]
)
def test_what_is_no_address_of_this_computer_is_refused(run: Run, host: str) -> None:
    with pytest.raises(InputError, match=r"host must be .* got") as error:
        Server(session_of(run), host=host).__exit__()
    assert "another port" not in str(error.value)


def certify(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of localhost, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1", "-nodes")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run([openssl, "req", "-x509", *kind, *name, *files], check=True, capture_output=True)
    return certificate, key


def test_a_review_speaks_https_with_a_certificate_and_nothing_else(tmp_path: Path) -> None:
    certificate, key = certify(tmp_path)
    session = session_of(saved_run(tmp_path / "run"), ("ada",))
    with serving(session, host="localhost", certificate=certificate, certificate_key=key) as client:
        link, port = client.server.link("ada"), client.server.port
        assert link.startswith(f"https://localhost:{port}/#token="), "the name that is in the certificate"
        trusting = ssl.create_default_context(cafile=str(certificate))
        origin = f"https://localhost:{port}"

        def ask(method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
            connection = http.client.HTTPSConnection("localhost", port, context=trusting, timeout=60)
            with closing(connection):
                connection.request(method, path, body, {"Origin": origin, **headers})
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

        assert ask("GET", "/api/overview")[0] == 403
        code, found = ask("POST", "/api/enter", token_of(link))
        assert code == 200
        code, overview = ask("GET", "/api/overview", Authorization=f"Bearer {found['key']}")
        assert (code, overview["person"]) == (200, "ada")
        assert ask("GET", "/api/overview", Authorization=f"Bearer {found['key']}", Host="evil.example")[0] == 403
        plain = http.client.HTTPConnection("localhost", port, timeout=60)
        with closing(plain):
            plain.request("GET", "/")
            with pytest.raises((http.client.HTTPException, OSError)):
                plain.getresponse()


def test_a_certificate_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    certificate, key = certify(tmp_path)
    other = certify(tmp_path / "a")[1]
    (tmp_path / "text.pem").write_text("no certificate")
    for pem, own, message in (
        (tmp_path / "none.pem", None, r"none\.pem' cannot be read: No such file"),
        (tmp_path / "text.pem", None, r"text\.pem' must be in PEM"),
        (certificate, None, "with its key in the same file"),
        (certificate, other, "which must belong to it"),
    ):
        with pytest.raises(InputError, match=message):
            check_certificate(pem, own)
    check_certificate(certificate, key)
    (tmp_path / "both.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
    check_certificate(tmp_path / "both.pem", None)
