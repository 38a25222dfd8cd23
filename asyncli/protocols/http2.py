"""An HTTP/2 client (RFC 9113): the heartbeat is a PING, or a HEAD on a new stream. No I/O.

Our SETTINGS forbid a dynamic table and push, and set the window to 0: header blocks are
independent, and no body comes. A row is held once the server has acknowledged them, because before
that a block may refer to the default table; with streams, once each of its GETs is answered. The
window then holds their bodies back, so the streams stay open. Only ``:status`` is read from a
block. Tested against h2 and hpack, frame by frame, for any split of the bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from asyncli.model.protocol_table import streams_needed
from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields, Filled
from asyncli.protocols.hpack import FILLS, NEXT_ENCODING, PLAIN, SHRINKS
from asyncli.protocols.http2_frames import (
    BEAT_HEAD,
    FIRST_WORDS,
    GOODBYE,
    MOST_STREAM,
    PONG_HEAD,
    FrameReader,
    RequestFrames,
    on_stream,
    on_streams,
)
from asyncli.protocols.interface import ANSWER, ESTABLISHED, Event, Protocol, ProtocolError
from asyncli.protocols.nonces import COUNT, Nonces

if TYPE_CHECKING:
    from asyncli.protocols.settings import Http2Settings

# The reopened streams of a row that has lost none.
_NONE = array("I")


def _of_all(event: Event | None, awaiting: int) -> Event | None:
    """The meaning of a read on which so many PINGs are unanswered: the acknowledgement of the last
    one follows those of all others.
    """
    if event is None or event.kind != ANSWER:
        return event
    return msgspec.structs.replace(event, own=True, answers=awaiting)


class Http2(Protocol):
    """Heartbeats by PING, or by the HEADs in ``settings.heads``, one for each URL of the plan.
    ``settings.gets``: likewise, the GETs of which each row holds ``settings.streams`` open.
    """

    # nginx does not react to a client's GOAWAY, and a reset right after one would discard it
    # unread.
    close_timeout_s = 0.3
    goodbye_bytes = GOODBYE

    def __init__(
        self, settings: Http2Settings, fields: Fields, entropy: Callable[[int], bytes]
    ) -> None:
        self._held = settings.streams
        self._nonces = Nonces(entropy, PONG_HEAD)
        self._questions = [BEAT_HEAD + text for text in self._nonces.texts]
        if not settings.heads:
            self.answers, self.owed = self._nonces.answers, self._nonces.owed
        self.answers_have_status = bool(settings.heads)
        asked = (settings.heads, settings.gets)
        self._heads, self._gets = (
            [RequestFrames(Filled(one, fields), settings.scheme) for one in each] for each in asked
        )
        # By row: the encoding of its next request (hpack.py).
        self.repeats = False
        self._encodings, self._first_encoding, self._tables = (
            bytearray(),
            FILLS if settings.table else PLAIN,
            0,
        )
        self._streams = array("I")  # by row: the last stream opened; 0: none
        self.partial: dict[int, FrameReader] = {}
        # The last answer to a HEAD in one frame, without the number of its stream: most answers are
        # equal to it.
        self._known, self._status = (b"", b""), 0
        # Held streams are 1, 3 and so on in each row; by row, a bit for each lost one, and the
        # streams that replace them.
        self._first, self._width = range(1, 2 * self._held, 2), (self._held + 7) // 8
        self._later: dict[int, array[int]] = {}
        self._begun: list[int] = []  # rows that have begun to miss streams
        self._asked: dict[
            tuple[int, int], bytes
        ] = {}  # by URL and encoding: the GETs of a handshake, if equal for all rows
        self._none, self._gone = (1 << self._held) - 1, bytearray()
        self._opened, self._lost, self._open, self._draining = 0, dict[str, int](), 0, 0
        self._needed = streams_needed(self._held, bool(self._heads))
        self.answers_further = not self._heads
        # By row, how many streams at once the server allows, if these are too few.
        self._allowed: dict[int, int] = {}
        # Rows whose last heartbeat is a PING in place of a HEAD.
        self._pinged = set[int]()

    def handshake(self, row: int, target: int) -> bytes:
        if not self._heads:
            self._nonces.add_row(row)
        if self._heads or self._held:
            self._streams.extend([0] * (row + 1 - len(self._streams)))
            self._streams[row] = max(0, 2 * self._held - 1)
            self._encodings.extend(bytes(max(0, row + 1 - len(self._encodings))))
            self._encodings[row] = self._first_encoding
        if self._held:
            self._gone.extend(b"\xff" * (self._width * (row + 1) - len(self._gone)))
        asks = partial(self._asks, row, target, self._first)
        self.partial[row] = FrameReader(bool(self._heads), self._held, 0, _NONE, self._first, asks)
        return FIRST_WORDS

    def heartbeat_for(self, row: int, target: int) -> bytes:
        if not self._heads:
            # Nonces.take, inlined: once per heartbeat.
            owed = self.owed
            number = owed[row] = (owed[row] + 1) % COUNT
            return self._questions[number]
        frames = self.partial.get(row)
        if (frames is not None and frames.drains) or not self._may_ask(row):
            return self._ping_in_place(row, frames)
        if row in self._pinged:
            self._pinged.discard(row)
            if frames is not None:
                frames.pings = False
        stream = self._streams[row]
        self._streams[row] = stream = stream + 2 if stream else 1
        return on_stream(self._heads[target].frames(row, self._take_encoding(row)), stream)

    def further_heartbeat(self, row: int, target: int) -> bytes:
        """Beside a HEAD a PING that answers none: an acknowledgement of it means nothing."""
        if not self._heads:
            return self.heartbeat_for(row, target)
        return self._questions[0]

    def _may_ask(self, row: int) -> bool:
        """Whether the server allows the stream of a HEAD beside those that the row holds."""
        allowed = self._allowed.get(row)
        return allowed is None or self._held - self._missing(row) < allowed

    def _ping_in_place(self, row: int, frames: FrameReader | None) -> bytes:
        """A PING in place of a HEAD, which would open a stream."""
        self._pinged.add(row)
        if frames is not None:
            frames.pings = True
        self._nonces.add_row(row)
        return self._questions[self._nonces.take(row)]

    def feed(self, row: int, data: bytes, awaiting: int) -> Event | None:
        frames = self.partial.pop(row, None)
        if not data:
            return frames.farewell() if frames is not None else None
        stream = self._streams[row] if self._streams else 0
        if (
            frames is None
            and awaiting
            and (data[:5], data[9:]) == self._known
            and data[5:9] == stream.to_bytes(4)
        ):
            return Event(self._status, stream < MOST_STREAM)
        before, frames = frames, frames or self._reader(row)
        nonce = self._nonces.text(row) if awaiting and row < len(self._nonces.owed) else b""
        try:
            frames.feed(data, stream, awaiting > 0, nonce)
        except ProtocolError as error:
            error.answer = frames.answer()
            raise
        if frames.allowed is not None:
            self._allow(row, frames.allowed)
        if frames.shrinks and self._encodings:
            self._encodings[row], frames.shrinks = SHRINKS, False
        event = frames.event()
        if frames.drains:
            event = self._drain(row, frames, event)
        if frames.in_message:
            self.partial[row] = frames
        elif (
            before is None
            and self._heads
            and not frames.pings
            and frames.read == 1
            and event is not None
            and event.kind == ANSWER
        ):
            self._known, self._status = (data[:5], data[9:]), event.status
        if awaiting > 1:
            event = _of_all(event, awaiting)
        granted = event is not None and event.kind == ESTABLISHED
        if self._held and (granted or (frames.lost and not frames.shakes)):
            self._count(row, frames, granted)
        return event

    def _allow(self, row: int, most: int) -> None:
        """The server allows the row ``most`` streams at once."""
        if most < self._needed:
            self._allowed[row] = most
            return
        was_short = self._allowed.pop(row, None) is not None
        if was_short and self._missing(row):
            self._begun.append(row)

    def _drain(self, row: int, frames: FrameReader, event: Event | None) -> Event | None:
        """Handle a read of a row that is kept after a GOAWAY."""
        self._draining += not frames.counted
        frames.counted = True
        if frames.refuses_head and event is not None:
            return msgspec.structs.replace(
                event, reply=event.reply + self._ping_in_place(row, frames)
            )
        return event

    def _take_encoding(self, row: int) -> int:
        """The encoding of the request that is made now."""
        encoding = self._encodings[row]
        if encoding != PLAIN:
            self._encodings[row] = NEXT_ENCODING[encoding]
            self._tables += encoding == FILLS
        return encoding

    def _asks(self, row: int, target: int, streams: Sequence[int]) -> bytes:
        """The GETs that open ``streams``."""
        if not streams:
            return b""
        get, encoding = self._gets[target], self._take_encoding(row)
        same = streams is self._first and not get.varies
        if same and (target, encoding) in self._asked:
            return self._asked[target, encoding]
        asked = on_streams(
            get.frames(row, encoding), get.frames(row, NEXT_ENCODING[encoding]), streams
        )
        if same:
            self._asked[target, encoding] = asked
        return asked

    def _reader(self, row: int) -> FrameReader:
        heads = bool(self._heads) and row not in self._pinged
        return FrameReader(heads, self._held, self._gone_of(row), self._later.get(row, _NONE))

    def take_rows_missing_streams(self) -> list[int]:
        rows, self._begun = self._begun, []
        return rows

    def reopen_streams(self, row: int, target: int) -> bytes:
        missing, last = self._missing(row), self._streams[row]
        if row in self.partial and self.partial[row].drains:
            return b""
        if self._allowed.get(row, self._held) < self._held:
            return b""
        if not missing or last + 2 * missing > MOST_STREAM:
            return b""
        streams = array("I", range(last + 2, last + 2 * missing + 1, 2))
        self.partial[row] = frames = self.partial.get(row) or self._reader(row)
        self._later[row] = frames.later = frames.later + streams
        frames.awaited.update(streams)
        self._streams[row] = streams[-1]
        self._opened, self._open = self._opened + missing, self._open + missing
        return self._asks(row, target, streams)

    def add_counts(self, counts: ProtocolCounts) -> None:
        counts.tables, self._tables = self._tables, 0
        counts.without_streams = len(self._allowed)
        if self._held:
            counts.streams_opened, counts.streams_lost, counts.streams_open = (
                self._opened,
                self._lost,
                self._open,
            )
            counts.draining = self._draining
            self._opened, self._lost, self._draining = 0, {}, 0

    def forget(self, row: int) -> None:
        super().forget(row)
        self._allowed.pop(row, None)
        self._pinged.discard(row)
        if row * self._width < len(self._gone):
            self._open -= self._held - self._missing(row)
            self._later.pop(row, None)
            self._gone[row * self._width : (row + 1) * self._width] = self._none.to_bytes(
                self._width
            )

    def _gone_of(self, row: int) -> int:
        """A bit for each held stream of the row that is lost."""
        return int.from_bytes(self._gone[row * self._width : (row + 1) * self._width]) & self._none

    def _missing(self, row: int) -> int:
        """The number of its held streams that are lost and not reopened."""
        return self._gone_of(row).bit_count() - len(self._later.get(row, ()))

    def _count(self, row: int, frames: FrameReader, granted: bool) -> None:
        """Count the streams that were lost in this read, and those that a handshake opened."""
        self._opened += self._held if granted else 0
        self._open += (self._held if granted else 0) - len(frames.lost)
        for why in frames.lost:
            self._lost[why] = self._lost.get(why, 0) + 1
        self._gone[row * self._width : (row + 1) * self._width] = frames.gone.to_bytes(self._width)
        if frames.later is not _NONE:
            self._later[row] = frames.later
        if frames.lost and not frames.drains and self._missing(row) == len(frames.lost):
            self._begun.append(row)
        frames.lost.clear()
