"""A TLS handshake by OpenSSL, fed a record at a time, and its secrets.

The secrets come by the context's key log, a private file in memory (memfd_create(2)) that is
emptied after each handshake. A pipe could fill and block OpenSSL.
"""

from __future__ import annotations

import errno
import os
import ssl

from asyncli.model.certificates import reason_of

_HEADER, _LONGEST_RECORD = 5, (1 << 14) + 2048  # 2048: of TLS 1.2 (RFC 5246, section 6.2.3)
# A hostile peer cannot make a reason longer.
_LONGEST_REASON = 120


class TlsError(OSError):
    """TLS ended a connection or a connect; ``reason`` is the alert or the error."""

    def __init__(self, reason: str) -> None:
        self.reason = reason[:_LONGEST_REASON]
        super().__init__(errno.EPROTO, self.reason)


class Handshake:
    """OpenSSL's object of one connection and its two buffers: during the handshake, with TLS 1.2
    always.
    """

    __slots__ = (
        "began",
        "destination",
        "incoming",
        "outgoing",
        "partial",
        "random",
        "tcp_done",
        "tls",
    )

    def __init__(self, destination: int, began: float) -> None:
        self.destination, self.began = destination, began
        self.tcp_done: float | None = None  # when TCP's handshake was over
        self.partial = b""
        self.random = b""

    def begin(self, context: ssl.SSLContext, name: str, session: ssl.SSLSession | None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_hostname=name, session=session
        )

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
        """Feed a record at a time, so that OpenSSL takes nothing after the handshake. True: it is
        over, and ``partial`` has the remaining bytes.
        """
        self.partial += data
        while len(self.partial) >= _HEADER:
            kind, major, length = (
                self.partial[0],
                self.partial[1],
                int.from_bytes(self.partial[3:5], "big"),
            )
            if not 20 <= kind <= 23 or major != 3 or length > _LONGEST_RECORD:
                length = len(self.partial)  # not a record: OpenSSL reports the error
            elif len(self.partial) < _HEADER + length:
                return False
            record, self.partial = (
                self.partial[: _HEADER + length],
                self.partial[_HEADER + length :],
            )
            self.incoming.write(record)
            if self.step():
                return True
        return False


class KeyLog:
    """The traffic secrets of each handshake, by its client random."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._file = os.memfd_create("keylog", os.MFD_CLOEXEC)
        context.keylog_filename = f"/proc/self/fd/{self._file}"

    def take(self, random: bytes) -> tuple[bytes, bytes]:
        """The secrets of client and server. Empties the file, with what it has of any other
        handshake.
        """
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).split(b"\n")
        self.clear()
        secrets = {}
        for line in lines:
            label, _, rest = line.partition(b" ")
            client_random, _, secret = rest.partition(b" ")
            if client_random == random.hex().encode("ascii"):
                secrets[label] = bytes.fromhex(secret.decode("ascii"))
        return secrets[b"CLIENT_TRAFFIC_SECRET_0"], secrets[b"SERVER_TRAFFIC_SECRET_0"]

    def clear(self) -> None:
        """Keep no secrets of a handshake that is over."""
        os.ftruncate(self._file, 0)
