"""A connection to a review, which is closed unless it is used."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

PATIENCE = 10.0  # seconds without a whole request


class Connection(H11Protocol):
    """A connection that asks for something from time to time.

    Whoever can reach the port may open as many as a process can have, and the person with the link would be locked out.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(PATIENCE, self._look, None)

    def _look(self, last: RequestResponseCycle | None) -> None:
        """Close the connection if no request has come since the last look, and none is being answered."""
        if self.transport.is_closing():
            return
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(PATIENCE, self._look, self.cycle)
