"""A handshake of TLS by OpenSSL, fed a record at a time, and the secrets that it agrees on.

The secrets come by the context's key log, which is a file in memory of this process alone (memfd_create(2)), emptied after each
handshake. A pipe could fill, and OpenSSL would wait for us.
"""

from __future__ import annotations

import errno
import os
import ssl

from asyncli.certificates import reason_of

_HEADER, _LONGEST_RECORD = 5, (1 << 14) + 2048  # 2048: of TLS 1.2 (RFC 5246, section 6.2.3)
# Reasons are OpenSSL's and the alerts' names; what a peer can make them say is bounded all the same.
_LONGEST_REASON = 120


class TlsError(OSError):
    """TLS ended a connection, or an attempt at one: ``reason`` says by which alert, or why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason[:_LONGEST_REASON]
        super().__init__(errno.EPROTO, self.reason)


class Handshake:
    """OpenSSL's object of one connection and its two buffers, while it shakes hands; of TLS 1.2, for good."""

    __slots__ = ("began", "incoming", "outgoing", "partial", "place", "random", "stood", "tls")

    def __init__(self, place: int, began: float) -> None:
        self.place, self.began = place, began
        self.stood: float | None = None  # when TCP's was over
        self.partial = b""
        self.random = b""

    def begin(self, context: ssl.SSLContext, name: str, session: ssl.SSLSession | None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=name, session=session)

    def step(self) -> bool:
        """Whether the handshake is over. Raises :class:`TlsError`."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(reason_of(error)) from None
        return True

    def feed(self, data: bytes) -> bool:
        """A record at a time, so that OpenSSL takes nothing of what follows the handshake. True: it is over, and ``partial`` has
        what is left."""
        self.partial += data
        while len(self.partial) >= _HEADER:
            kind, major, length = self.partial[0], self.partial[1], int.from_bytes(self.partial[3:5], "big")
            if not 20 <= kind <= 23 or major != 3 or length > _LONGEST_RECORD:
                length = len(self.partial)  # no record: OpenSSL says what it takes it for
            elif len(self.partial) < _HEADER + length:
                return False
            record, self.partial = self.partial[: _HEADER + length], self.partial[_HEADER + length :]
            self.incoming.write(record)
            if self.step():
                return True
        return False


class KeyLog:
    """The traffic secrets of each handshake, by its client's random."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._file = os.memfd_create("keylog", os.MFD_CLOEXEC)
        context.keylog_filename = f"/proc/self/fd/{self._file}"

    def take(self, random: bytes) -> tuple[bytes, bytes]:
        """The client's and the server's; the file is empty afterwards. All it has of another handshake is of no use to anyone."""
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).split(b"\n")
        self.clear()
        found = {}
        for line in lines:
            label, _, rest = line.partition(b" ")
            whose, _, secret = rest.partition(b" ")
            if whose == random.hex().encode("ascii"):
                found[label] = bytes.fromhex(secret.decode("ascii"))
        return found[b"CLIENT_TRAFFIC_SECRET_0"], found[b"SERVER_TRAFFIC_SECRET_0"]

    def clear(self) -> None:
        """Of no handshake that ended are secrets kept."""
        os.ftruncate(self._file, 0)
