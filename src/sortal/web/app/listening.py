"""The address that a review listens on, and the host names that it answers to."""

import errno
import os
import socket
import ssl
from collections.abc import Iterable
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from sortal.errors import InputError
from sortal.system.regular_files import read_regular

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
USUAL_PORTS = {"http": 80, "https": 443}  # which browsers leave out
NOT_LOCAL = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # the address is not one of this computer


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; asyncio avoids delays of 40 ms (Nagle) only if its protocol is given as TCP."""
    if not host.strip():  # which would mean every address of this computer
        raise _host_error(host, "it is empty")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as undo:
        try:
            listening = undo.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            if os.name == "posix":  # elsewhere it would let another process take the port
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(128)
        except (TypeError, UnicodeError, OverflowError, OSError) as error:
            why = str(getattr(error, "strerror", None) or error).rstrip(".")
            if isinstance(error, TypeError | UnicodeError | socket.gaierror) or error.args[0] in NOT_LOCAL:
                raise _host_error(host, why) from error
            raise InputError(f"Port {port} of {host!r} cannot be used: {why}. Choose another port.") from error
        address = _address(listening.getsockname()[0])
        if address.is_multicast or str(address) == "255.255.255.255":
            raise _host_error(host, "it is a multicast or broadcast address")
        undo.pop_all()
        return listening


def _host_error(host: str, why: str) -> InputError:
    return InputError(
        f"host must be an address or a name of this computer, got {host!r}: {why}. "
        "Use 127.0.0.1 to admit this computer only, or 0.0.0.0 to admit every computer that can reach it."
    )


def _address(text: str) -> IPv4Address | IPv6Address:
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def spelled(text: str) -> str:
    """Write an address as browsers do."""
    address = _address(text)
    return f"[{address}]" if address.version == 6 else str(address)


def host_headers(names: Iterable[str], port: int) -> frozenset[str]:
    """Return the Host headers of requests to a port of a computer with these names."""
    lower = [each.lower() for each in names]
    return frozenset([*(f"{each}:{port}" for each in lower), *(lower if port in USUAL_PORTS.values() else ())])


def place_of(listening: socket.socket, host: str, *, tls: bool = False) -> tuple[str, frozenset[str]]:
    """Return the address of the page, and the Host headers to accept besides those of the address that is reached.

    Links contain the numeric address, because a name may resolve to another one: localhost may mean ::1, where another
    user could wait for the token. A review that listens on all addresses uses the name of this computer. With TLS, a
    name that was given stays, as it is in the certificate, which nobody else can show.
    """
    text, port = listening.getsockname()[:2]
    address, link_host = _address(text), spelled(text)
    names = {f"[{host}]" if ":" in host else host}
    if address.is_loopback or address.is_unspecified:
        names |= {*LOOPBACK}
    if address.is_unspecified:
        link_host = socket.gethostname()
        names.add(link_host)
    elif tls:
        link_host = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{link_host}:{port}/", host_headers(names, port)


def check_certificate(certificate: Path, key: Path | None) -> None:
    """Raise InputError unless a certificate and its key, in PEM and not encrypted, can be used."""
    for file in filter(None, (certificate, key)):
        try:
            read_regular(file)
        except OSError as error:
            raise InputError(f"The file {str(file)!r} cannot be read: {error.strerror or error}.") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        where = "its key in the same file or in certificate_key" if key is None else f"the key {str(key)!r}"
        raise InputError(
            f"The certificate {str(certificate)!r} must be in PEM, with {where}, which must belong to it and not be "
            f"encrypted: {getattr(error, 'reason', None) or error}."
        ) from error
