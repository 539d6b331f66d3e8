"""ASGI middleware that rejects unsafe requests and adds security headers to every response.

It rejects methods other than GET and HEAD, request bodies, long targets, requests with a foreign Host header (DNS
rebinding: an attacker's name that points to this machine), and API requests from pages of other sites.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from swivel.explorer.limits import MAX_TARGET_LENGTH

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

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


@dataclass(frozen=True, slots=True)
class Hosts:
    """The host names that a request may have in its Host header.

    A server on a loopback address allows loopback addresses and `localhost`. A server on another address also allows
    any numeric address (DNS rebinding needs a name) and the name of this machine. Ports are ignored, because a tunnel
    may use another one.

    >>> Hosts("127.0.0.1").allow("localhost:8707"), Hosts("127.0.0.1").allow("evil.example")
    (True, False)
    """

    bound: str

    @property
    def is_loopback(self) -> bool:
        """Whether only clients on this machine can connect."""
        return self.bound == "localhost" or _is_loopback(self.bound)

    def allow(self, header: str) -> bool:
        """Return whether a Host header names this server."""
        name = _host_name(header)
        if name == "localhost" or _is_loopback(name):
            return True
        if self.is_loopback:
            return False
        return name in {self.bound.lower(), socket.gethostname().lower()} or _is_address(name)


def _host_name(header: str) -> str:
    """Return the host of a Host header in lower case, without port and brackets."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


class Guard:
    """ASGI middleware that rejects requests that the page never makes, and adds the security headers."""

    def __init__(self, app: App, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        rejection = self._reject(scope)
        if rejection is not None:
            await _respond(send_guarded, *rejection)
        else:
            await self._app(scope, receive, send_guarded)

    def _reject(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason if a request is rejected, else None."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._hosts.allow(headers.get("host", "")):
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


async def _respond(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    # A rejected body is not read, so the connection cannot be used again.
    headers.append((b"connection", b"close"))
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))

    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
