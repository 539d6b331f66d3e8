"""Which requests the explorer answers, and the security headers of its answers.

Requests with a foreign Host header are rejected (DNS rebinding: an attacker's name that points to this machine), and
so are API requests from pages of other sites.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import Request

POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# An IPv6 address in brackets, or a name; and a port. User names and paths do not match.
_HOST = re.compile(r"(\[(?P<address>[0-9a-f.]*:[0-9a-f.:]*)\]|(?P<name>[a-z0-9._-]+))(:[0-9]{1,5})?")
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def allows_host(bound: str, header: str) -> bool:
    """Return whether a Host header names the server that listens on the address `bound`.

    >>> allows_host("127.0.0.1", "localhost:8707"), allows_host("127.0.0.1", "evil.example")
    (True, False)
    """
    # A server on a loopback address allows loopback addresses and `localhost`. A server on another address also allows
    # any numeric address (DNS rebinding needs a name) and the name of this machine. Ports are ignored, because a tunnel
    # may use another one. Starlette's TrustedHostMiddleware allows only names of a fixed list.
    match = _HOST.fullmatch(header.lower())
    if match is None:
        return False
    name = match["address"] or match["name"].removesuffix(".")
    if is_loopback(name):
        return True
    if is_loopback(bound):
        return False
    return name in {bound.lower(), socket.gethostname().lower()} or _to_address(name) is not None


def is_loopback(host: str) -> bool:
    """Return whether only clients on this machine can connect to an address."""
    address = _to_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _to_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def find_fault(request: Request, bound: str) -> tuple[int, str] | None:
    """Return the status and the reason if a server on the address `bound` must reject a request, else None."""
    if not allows_host(bound, request.headers.get("host", "")):
        return 421, "the Host header does not name this server; open the link that it printed"
    if request.url.path.startswith("/api/") and request.headers.get("sec-fetch-site") == "cross-site":
        return 403, "pages of other sites must not use this API"
    return None
