"""The protocol of a connection to the explorer, with limits on the number of connections and on idle time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from swivel.explorer import limits

IDLE_SECONDS = 10.0


class TimedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, which closes a connection while its client sends no request or does not read the answer."""

    # uvicorn limits the time between two requests only. Clients that connect and send nothing, or half a request, would
    # keep all connections of the server. Its own limit answers all connections with status 503 once there are too many,
    # each of which keeps a file open; here only those above the limit are closed, so that a flood of them neither uses
    # up the open files of the process nor stops the others.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to check the connection, or close it if there are too many."""
        super().connection_made(transport)
        self._check_later()
        if len(self.connections) > limits.MAX_CONNECTIONS:
            transport.abort()

    def _check_later(self) -> None:
        state = self._state()
        self._check = self.loop.call_later(IDLE_SECONDS, self._close_if_idle, state)

    def _state(self) -> tuple[Any, ...]:
        """Return the last request and the bytes that the client has not taken yet."""
        return self.cycle, self.transport.get_write_buffer_size()

    def _close_if_idle(self, before: tuple[Any, ...]) -> None:
        """Close the connection if its state is that of the last check, and the server has nothing to compute."""
        request, unread_bytes = self._state()
        is_computing = request is not None and not request.response_complete and not unread_bytes
        if is_computing or before != (request, unread_bytes):
            self._check_later()
        else:
            self.transport.abort()  # Closing would wait until a client has read everything.

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to check the connection."""
        self._check.cancel()
        super().connection_lost(exc)
