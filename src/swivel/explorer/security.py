"""ASGI middleware that rejects unsafe requests and adds security headers to every response.

It rejects methods other than GET and HEAD, request bodies, long targets, requests with a foreign Host header (DNS
rebinding: an attacker's name that points to this machine), and API requests from pages of other sites.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from swivel.explorer.limits import MAX_TARGET_LENGTH

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
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
    name = _parse_host(header.lower())
    if name is None:
        return False
    if is_loopback(name):
        return True
    if is_loopback(bound):
        return False
    return name in {bound.lower(), socket.gethostname().lower()} or _to_address(name) is not None


def _parse_host(header: str) -> str | None:
    """Return the name or the address of a Host header in lower case, None if the header is malformed."""
    from starlette.datastructures import URL

    try:
        url = URL(f"//{header}")
        name = url.hostname or ""
        port = url.port
    except ValueError:
        return None

    # Put together again, the two must give the header: there is no user name, no path, and nothing after a bracket.
    address = f"[{name}]" if ":" in name else name
    if header not in (address, f"{address}:{port}"):
        return None
    return name.removesuffix(".")


def is_loopback(host: str) -> bool:
    """Return whether only clients on this machine can connect to an address."""
    address = _to_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _to_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class Guard:
    """ASGI middleware that rejects requests that the page never makes, and adds the security headers."""

    # `bound` is the address that the server listens on.

    def __init__(self, app: ASGIApp, bound: str) -> None:
        self._app = app
        self._bound = bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
        from starlette.responses import JSONResponse

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        app = self._app
        rejection = self._reject(scope)
        if rejection is not None:
            status, reason = rejection
            # A rejected body is not read, so the connection cannot be used again.
            headers = {"connection": "close"} | ({"allow": "GET, HEAD"} if status == 405 else {})
            app = JSONResponse({"error": reason}, status, headers)
        await app(scope, receive, send_guarded)

    def _reject(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason if a request is rejected, else None."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not allows_host(self._bound, headers.get("host", "")):
            return 421, "the Host header does not name this server; open the link that it printed"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET and HEAD are allowed"

        target_length = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if target_length > MAX_TARGET_LENGTH:
            return 414, f"path and query must have at most {MAX_TARGET_LENGTH:,} bytes, got {target_length:,}"
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "a request must have no body"

        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site") == "cross-site":
            return 403, "pages of other sites must not use this API"
        return None
