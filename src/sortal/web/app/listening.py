"""The address that a review listens on, and the names that it may be asked by."""

import errno
import os
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from sortal.errors import InputError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HTTP = 80  # the port that browsers leave out


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Only one that says TCP gets answers out at once, not after 40 ms (Nagle)."""
    if not host.strip():  # which would mean every address, to every computer
        raise _no_host(host, "it is empty")
    found: socket.socket | None = None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name == "posix":  # elsewhere it would let another process take the port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        address = _address(found.getsockname()[0])
        if address.is_multicast or str(address) == "255.255.255.255":
            raise _no_host(host, "it is the address of many computers")
        found.listen(128)
        return found
    except BaseException as error:
        if found is not None:
            found.close()
        why = str(getattr(error, "strerror", None) or error).rstrip(".")
        if isinstance(error, TypeError | UnicodeError | socket.gaierror) or _is_elsewhere(error):
            raise _no_host(host, why) from error
        if isinstance(error, OSError | OverflowError):
            raise InputError(f"Port {port} of {host!r} cannot be used: {why}. Choose another port.") from error
        raise


def _is_elsewhere(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def _no_host(host: str, why: str) -> InputError:
    return InputError(
        f"host must be an address or a name of this computer, got {host!r}: {why}. "
        "Use 127.0.0.1 for this computer alone, or 0.0.0.0 for every one that can reach it."
    )


def _address(text: str) -> IPv4Address | IPv6Address:
    found = ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def spelled(address: str) -> str:
    """Write an address as browsers do."""
    found = _address(address)
    return f"[{found}]" if found.version == 6 else str(found)


def names(own: Iterable[str], port: int) -> frozenset[str]:
    """Return what requests to a port may say as their host."""
    ours = [each.lower() for each in own]
    return frozenset([*(f"{each}:{port}" for each in ours), *(ours if port == HTTP else ())])


def place_of(listening: socket.socket, host: str) -> tuple[str, frozenset[str]]:
    """Return where a link leads, and the names that requests may come by.

    A link has the very address that is listened on: a name may lead to another one, as localhost does to ::1, where
    another user may wait for the token. Where all addresses are listened on, it has the name that others may know.
    """
    address, port = listening.getsockname()[:2]
    found = _address(address)
    own = {spelled(address), f"[{host}]" if ":" in host else host}
    if found.is_loopback or found.is_unspecified:
        own |= {*LOOPBACK}
    named = spelled(address)
    if found.is_unspecified:
        named = socket.gethostname()
        own.add(named)
    return f"http://{named}:{port}/", names(own, port)
