"""Listen on a socket, check requests, and run the server until Ctrl-C.

Requests with a foreign Host header are rejected (DNS rebinding: an attacker's name that points to this machine), and
so are API requests from pages of other sites.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swivel.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    import uvicorn
    from fastapi import Request

    from swivel.explorer.queries import VectorSet

PORT = 8707
_BACKLOG = 64  # connections that are accepted at once
_GRACE_SECONDS = 2
_MAX_CONNECTIONS = 200  # further ones get status 503; a process may often have 1,024 open files only
# Security headers of every answer.
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


def check_extra() -> None:
    """Raise MissingExtra, which names the extra to install, if the libraries of the server are missing."""
    with needs_extra("pages", "fastapi and uvicorn", "explore"):
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; connections wait in its queue until the server runs."""
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port must be 0 (any free port) to 65535, got {port}")

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port < 65_535 else 0
            raise ConfigError(f"port {port} is in use: pass port={other}, or port=0 for any free port") from error
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; pass another host or port") from error

    # Accepted connections inherit TCP_NODELAY. asyncio sets it only on sockets that it creates; without it, every small
    # answer waits 40 ms until the browser has acknowledged its headers (benchmarks/explorer.py).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def name_url(listener: socket.socket) -> str:
    """Return the URL to open in a browser; the loopback address if the server listens on all addresses."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if ":" in host:  # IPv6
        host = f"[{host}]"
    return f"http://{host}:{port}/"


def make_server(sets: Sequence[VectorSet], host: str) -> uvicorn.Server:
    """Return a configured server that is not running yet."""
    import uvicorn

    from swivel.explorer.app import make_app

    config = uvicorn.Config(
        make_app(sets, host),
        http="h11",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        backlog=_BACKLOG,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def serve(sets: Sequence[VectorSet], listener: socket.socket, host: str) -> None:
    """Run the server on `listener` until Ctrl-C or SIGTERM."""
    server = make_server(sets, host)
    threading.Thread(target=warm, args=(sets,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after a graceful shutdown.
        server.run(sockets=[listener])


def warm(sets: Sequence[VectorSet]) -> None:
    """Compute cached values before the first request, so that it is as fast as later ones."""
    with contextlib.suppress(Exception):  # The first request will raise the same error.
        for each in sets:
            first, *others = each.views.values()
            first.speller.complete("a", 1)
            first.speller.find_close("a", 1)
            first.map.start()
            for view in others:
                _ = view.vectors
            if each.vectors.columns is not None:
                _ = each.vectors.zero_columns


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
