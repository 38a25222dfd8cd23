"""The door between the engine and a protocol: bytes in, events out. What decides here has no socket and no clock.

The engine owns the transport, the deadlines and the counts. One protocol object serves all rows of a table; a state of a row's
own it keeps in typed arrays by row, and in ``partial`` only those rows that are in the midst of a message.

- The engine compares each read with the last whole answer before it asks: equal bytes never reach the protocol. So a protocol
  makes its answers equal where it can (one ping payload for all rows), and expects one answer at a time.
- Only an answer that came whole in one read, without a reply, on a row without a partial message, becomes the one compared with.
- NEWS keeps a row alive and answers no heartbeat. What a peer sends unasked is the protocol's to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import Protocol as Interface

import msgspec

from asyncli.records import ProtocolCounts

#: What an event is: the answer to a heartbeat or a request; something else that shows that the peer lives; the peer says goodbye;
#: it grants what :meth:`Protocol.handshake` asked for.
ANSWER, NEWS, CLOSING, ESTABLISHED = range(4)


class ProtocolError(Exception):
    """The peer sent what the protocol does not allow; ``str()`` says what."""


class Event(msgspec.Struct, frozen=True):
    """What one read meant. ``status``: of HTTP, or the code of a goodbye; 0: none. ``body_bytes``: without framing. ``reply``:
    bytes to send at once. ``messages``: what came whole that nobody asked for. ``rest``: of ESTABLISHED, what came after it; of
    CLOSING, why, as the peer says it. ``own``: of ANSWER, the same bytes would mean something else, of another row or next time.
    """

    status: int
    keep_alive: bool
    body_bytes: int = 0
    kind: int = ANSWER
    reply: bytes = b""
    messages: int = 0
    rest: bytes = b""
    own: bool = False


class Protocol:
    """What is spoken on the held connections of one table; each protocol has a ``feed``, and of the rest what is not as here."""

    #: The rows that are in the midst of a message; always the same mapping.
    partial: dict[int, Any]
    #: The bytes of a heartbeat where they are the same for all rows and each time; None: see :meth:`heartbeat_for`.
    heartbeat: bytes | None = None
    #: handshake(row, target) -> the first words to this URL of the plan, where the peer must grant something before the row is
    #: held; None: it need not. Until ESTABLISHED the row is in ``partial``.
    handshake: Callable[[int, int], bytes] | None = None
    #: None: rows send heartbeats. Else they listen, and one that hears nothing for so long is dead.
    silence_s: float | None = None
    #: For so long the peer's close is awaited after a goodbye; None: as an answer.
    close_timeout_s: float | None = None

    def heartbeat_for(self, row: int, target: int) -> bytes:
        """The next heartbeat of a row that is connected to this URL of the plan, where each has its own."""
        raise NotImplementedError

    def feed(self, row: int, data: bytes, awaiting: bool) -> Event | None:
        """What a read means, b"" being the end of the stream; None: nothing yet. ``awaiting``: a heartbeat is out. Raises
        :class:`ProtocolError`.
        """
        raise NotImplementedError

    def awaits(self, row: int) -> str:
        """The message that a handshake waits for, where it has a name."""
        return ""

    def goodbye(self, row: int) -> bytes:
        """The last words on a connection that stands, after which the peer closes it; b"": none."""
        return b""

    def take_rows_missing_streams(self) -> list[int]:
        """The rows that have begun, since the last call, to hold fewer streams than they are to."""
        return []

    def reopen_streams(self, row: int, target: int) -> bytes:
        """What opens the streams that a row misses, between two heartbeats; b"": it misses none."""
        return b""

    def reopen_delay_s(self, row: int) -> float:
        """The least wait that the row's peer has asked for before it is connected to again."""
        return 0.0

    def add_counts(self, counts: ProtocolCounts) -> None:
        """Add what it counts itself, since the last call."""

    def forget(self, row: int) -> None:
        """The row's connection is gone."""
        self.partial.pop(row, None)


class Reader(Interface):
    """Reads one answer: ``feed`` until it gives an event; then ``rest`` holds what came after it."""

    @property
    def rest(self) -> bytes: ...

    def feed(self, data: bytes) -> Event | None: ...

    def end(self) -> Event | None:
        """The stream has ended: the answer if it was to end so, else None (it was cut)."""
        ...
