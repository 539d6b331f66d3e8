"""Open vectors, listen on a socket, and run the server until Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swivel.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    import uvicorn

    from swivel.explorer.models import VectorSet

PORT = 8707
_BACKLOG = 64  # connections that are accepted at once
_GRACE_SECONDS = 2
_MAX_CONNECTIONS = 200  # further ones get status 503; a process may often have 1,024 open files only


def check_extra() -> None:
    """Raise MissingExtra, which names the extra to install, if the libraries of the server are missing."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_extra("pages", "fastapi and uvicorn", "explore") from error


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


def open_sets(paths: Sequence[str | Path], matrix: str | Path | None = None) -> list[VectorSet]:
    """Open one or two sets of vectors; `matrix` is what the first was trained on, by default the one beside it."""
    from swivel.explorer.models import open_set

    return [open_set(path, matrix if number == 0 else None) for number, path in enumerate(paths)]


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
