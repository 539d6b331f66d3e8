"""From paths to a running server.

Receives what the command line was given, hands on a listening socket and a loop that ends with Ctrl-C. It prints
nothing.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swivel.errors import ConfigError, missing_extra
from swivel.explorer.security import Hosts

if TYPE_CHECKING:
    import uvicorn

    from swivel.explorer.app import Exploration

PORT = 8707
_BACKLOG = 256
_GRACE_SECONDS = 2
_MOST_CONNECTIONS = 1_000


def check_extra() -> None:
    """Raise MissingExtra, with what to install, where the server's libraries are not there."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_extra("pages", "fastapi and uvicorn", "explore") from error


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait in it until the server answers.

    Raises ConfigError where the port is taken or the address is not this machine's.
    """
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port must be 0 (any free one) to 65535, got {port}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port < 65_535 else 0
            raise ConfigError(f"port {port} is in use: pass --port {other}, or --port 0 for any free one") from error
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; pass another --host or --port") from error
    # Connections inherit it. asyncio sets it on sockets of its own only, and without it every small answer waits 40 ms
    # for the browser to acknowledge its headers (benchmarks/explorer.py).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def name_url(listener: socket.socket) -> str:
    """Return the address to open in a browser; where the server listens everywhere, this machine's own."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def open_exploration(paths: Sequence[str | Path], matrix: str | Path | None = None) -> Exploration:
    """Return one or two sets of vectors, ready to be shown; `matrix` is the first one's.

    Raises MissingExtra, StorageError or ConfigError.
    """
    check_extra()
    from swivel.explorer.app import Exploration
    from swivel.explorer.maps import MapMaker, cache_folder
    from swivel.explorer.models import open_set

    sets = [open_set(path, matrix if number == 0 else None) for number, path in enumerate(paths)]
    return Exploration(sets, MapMaker(cache_folder()))


def make_server(exploration: Exploration, host: str) -> uvicorn.Server:
    """Return a server that is not running yet."""
    import uvicorn

    from swivel.explorer.app import make_app

    config = uvicorn.Config(
        make_app(exploration, Hosts(host)),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def serve(exploration: Exploration, listener: socket.socket, host: str) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    server = make_server(exploration, host)
    threading.Thread(target=warm, args=(exploration,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended what was running, and tells us again.
        server.run(sockets=[listener])


def warm(exploration: Exploration) -> None:
    """Compute beforehand what the first answers need, so that they are as fast as the next ones."""
    with contextlib.suppress(Exception):  # Whatever is wrong, the first request says so.
        for each in exploration.sets:
            view = each.view("")
            view.speller.complete("a", 1)
            view.speller.find_close("a", 1)
            exploration.maps.map_of(view)
        for each in exploration.sets:
            _ = each.dead_columns
            for view in each.views.values():
                _ = view.vectors
