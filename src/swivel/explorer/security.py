"""What stands before every answer: who may ask, how, and how much.

Receives requests as ASGI hands them over; refuses other methods than GET and HEAD, bodies, long targets, requests for a
host that this server is not (a name that an attacker pointed at this machine), and requests for data by another
site's page; adds the security headers to every answer. It knows no routes.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from swivel.explorer.limits import LONGEST_TARGET

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
    """The names that requests may be for.

    On loopback: that address and `localhost`. Elsewhere also any address written in numbers (a name is what an attack
    needs) and the machine's own name. Ports are not looked at, so that a tunnel may have another.

    >>> Hosts("127.0.0.1").allow("localhost:8707"), Hosts("127.0.0.1").allow("evil.example")
    (True, False)
    """

    bound: str

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.bound == "localhost" or _is_loopback(self.bound)

    def allow(self, header: str) -> bool:
        """Return whether a Host header is for this server."""
        name = _host_name(header)
        if name == "localhost" or _is_loopback(name):
            return True
        if self.is_loopback:
            return False
        return name in {self.bound.lower(), socket.gethostname().lower()} or _is_address(name)


def _host_name(header: str) -> str:
    """Return a Host header without its port and brackets, in lower case."""
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
    """ASGI middleware: refuses what no page of ours asks for, and adds the headers."""

    def __init__(self, app: App, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        refused = self._refuse(scope)
        if refused is not None:
            await _answer(send_guarded, *refused)
        else:
            await self._app(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason where a request is not answered."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._hosts.allow(headers.get("host", "")):
            return 421, "this server answers under its own address only: open the link that it printed"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET and HEAD"
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > LONGEST_TARGET:
            return 414, f"at most {LONGEST_TARGET:,} bytes in an address"
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "no request has a body"
        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site") == "cross-site":
            return 403, "another site's page may not ask"
        return None


async def _answer(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    # The body that was refused is not read: the connection cannot be used again.
    headers += [(b"connection", b"close")] + [(b"allow", b"GET, HEAD")] * (status == 405)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
