"""TLS 1.3's record layer (RFC 8446, sections 4.6, 5 and 7) for many connections, without an object
for each.

OpenSSL does the handshake (engine/tls.py); then a connection is a row here: its cipher suite, keys,
secrets and record numbers are in columns, and a dictionary has only incomplete records and
handshake messages. No socket, no clock.

A record's number is used once: a sealed record must be sent, or the connection ends (section 5.3).
The cipher is OpenSSL's, by ``cryptography``.
"""

from __future__ import annotations

import hmac
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _APPLICATION = 20, 21, 22, 23
_NEW_SESSION_TICKET, _KEY_UPDATE = 4, 24
_HEADER, _TAG = 5, 16
_HEAD, _NONCE = struct.Struct(">BHH"), struct.Struct(">IQ")
_KINDS = [bytes((kind,)) for kind in range(256)]
_MOST_PLAINTEXT = 1 << 14
_MOST_CIPHERTEXT = _MOST_PLAINTEXT + 256
# The longest allowed message: a ticket with nonce and extensions of the greatest lengths (section
# 4.6.1).
_MOST_MESSAGE = 4 + 4 + 4 + 1 + 255 + 2 + 65_535 + 2 + 65_534
# AES-GCM is safe for 2^24.5 records with one key (section 5.5): the key is changed long before.
_MOST_RECORDS = 1 << 23

#: Cipher suites by OpenSSL's names: their cipher, the length of its key, and their hash.
SUITES: dict[str, tuple[Callable[[Any], Any], int, str, int]] = {
    "TLS_AES_128_GCM_SHA256": (AESGCM, 16, "sha256", 32),
    "TLS_AES_256_GCM_SHA384": (AESGCM, 32, "sha384", 48),
    "TLS_CHACHA20_POLY1305_SHA256": (ChaCha20Poly1305, 32, "sha256", 32),
}
# By the number in a row's column; 0: the row has no keys.
_SUITES: list[Any] = [None, *SUITES.values()]
_NUMBER = {name: number for number, name in enumerate(SUITES, 1)}

#: Alerts by their numbers (section 6).
ALERTS = {
    0: "close_notify",
    10: "unexpected_message",
    20: "bad_record_mac",
    22: "record_overflow",
    40: "handshake_failure",
    42: "bad_certificate",
    43: "unsupported_certificate",
    44: "certificate_revoked",
    45: "certificate_expired",
    46: "certificate_unknown",
    47: "illegal_parameter",
    48: "unknown_ca",
    49: "access_denied",
    50: "decode_error",
    51: "decrypt_error",
    70: "protocol_version",
    71: "insufficient_security",
    80: "internal_error",
    86: "inappropriate_fallback",
    90: "user_canceled",
    109: "missing_extension",
    110: "unsupported_extension",
    112: "unrecognized_name",
    113: "bad_certificate_status_response",
    115: "unknown_psk_identity",
    116: "certificate_required",
    120: "no_application_protocol",
}
_ALERT_NUMBER = {name: number for number, name in ALERTS.items()}


class RecordError(Exception):
    """The peer broke a rule of TLS; ``alert``: the name of the alert to send. ``plain``: what came
    before in the same read.
    """

    plain = b""

    def __init__(self, alert: str, why: str) -> None:
        super().__init__(why)
        self.alert = alert


class AlertError(Exception):
    """The peer ended the connection by a fatal alert; the message is its name. ``plain``: what came
    before in the same read.
    """

    plain = b""


def expand_label(secret: bytes | bytearray, label: str, length: int, digest: str) -> bytes:
    """HKDF-Expand-Label without context (section 7.1); ``length`` is at most that of the hash, so
    one block is enough.
    """
    name = b"tls13 " + label.encode("ascii")
    info = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0\1"
    return hmac.digest(secret, info, digest)[:length]


class _Direction:
    """The columns of one direction: 100 bytes a row."""

    def __init__(self) -> None:
        self.keys = bytearray()  # 32 a row
        self.secrets = bytearray()  # 48 a row
        # The nonce of record 0: its first 4 bytes, and the other 8, to which the number is added by
        # XOR (section 5.3).
        self.nonces, self.counted = array("I"), array("Q")
        self.numbers = array("Q")  # of the next record

    def grow(self, rows: int) -> None:
        added = rows - len(self.numbers)
        self.keys += bytes(32 * added)
        self.secrets += bytes(48 * added)
        for column in (self.nonces, self.counted, self.numbers):
            column.extend([0] * added)

    def put(self, row: int, suite: int, secret: bytes) -> None:
        """Derive the keys of a traffic secret (section 7.3)."""
        _, length, digest, _ = _SUITES[suite]
        self.secrets[48 * row : 48 * row + len(secret)] = secret
        self.keys[32 * row : 32 * row + length] = expand_label(secret, "key", length, digest)
        self.nonces[row], self.counted[row] = _NONCE.unpack(expand_label(secret, "iv", 12, digest))
        self.numbers[row] = 0

    def update(self, row: int, suite: int) -> None:
        """Change to the next traffic secret (section 7.2)."""
        _, _, digest, length = _SUITES[suite]
        self.put(
            row,
            suite,
            expand_label(self.secrets[48 * row : 48 * row + length], "traffic upd", length, digest),
        )

    def wipe(self, row: int) -> None:
        self.keys[32 * row : 32 * row + 32] = bytes(32)
        self.secrets[48 * row : 48 * row + 48] = bytes(48)


class RecordLayer:
    """The connections of one process, by their descriptors."""

    def __init__(self) -> None:
        self._suite = bytearray()
        self._out, self._in = _Direction(), _Direction()
        # Rows with an incomplete record, and with an incomplete handshake message.
        self._partial: dict[int, bytes] = {}
        self._message: dict[int, bytes] = {}

    def open(self, row: int, suite: str, ours: bytes, theirs: bytes) -> None:
        """Begin with the application traffic secrets of both ends; replaces what the row had."""
        if row >= len(self._suite):
            rows = max(row + 1, len(self._suite) + 1024)
            self._suite += bytes(rows - len(self._suite))
            self._out.grow(rows)
            self._in.grow(rows)
        self.forget(row)
        self._suite[row] = number = _NUMBER[suite]
        self._out.put(row, number, ours)
        self._in.put(row, number, theirs)

    def forget(self, row: int) -> None:
        """Erase the keys of a connection that has ended or failed."""
        if row < len(self._suite):
            self._suite[row] = 0
            self._out.wipe(row)
            self._in.wipe(row)
            self._partial.pop(row, None)
            self._message.pop(row, None)

    def has_keys(self, row: int) -> bool:
        return row < len(self._suite) and self._suite[row] != 0

    def seal(self, row: int, data: bytes, kind: int = _APPLICATION) -> bytes:
        """The records of ``data``, which must be sent in this order."""
        if len(data) > _MOST_PLAINTEXT:
            return b"".join(
                self.seal(row, data[at : at + _MOST_PLAINTEXT], kind)
                for at in range(0, len(data), _MOST_PLAINTEXT)
            )
        way = self._out
        number = way.numbers[row]
        if number >= _MOST_RECORDS and kind == _APPLICATION:
            return self._update_ours(row) + self.seal(row, data)
        way.numbers[row] = number + 1
        cipher, length, _, _ = _SUITES[self._suite[row]]
        nonce = _NONCE.pack(way.nonces[row], way.counted[row] ^ number)
        header = _HEAD.pack(_APPLICATION, 0x0303, len(data) + 1 + _TAG)
        key = way.keys[32 * row : 32 * row + length]
        sealed = cipher(key).encrypt(nonce, data + _KINDS[kind], header)
        return header + sealed  # type: ignore[no-any-return]

    def alert(self, row: int, name: str) -> bytes:
        """The record of an alert; after it nothing may be sealed for this row."""
        return self.seal(
            row,
            bytes((1 if name in ("close_notify", "user_canceled") else 2, _ALERT_NUMBER[name])),
            _ALERT,
        )

    def feed(self, row: int, data: bytes) -> tuple[bytes, bytes, bool]:
        """Decrypt a read: the application's bytes, bytes to send at once, and whether the peer sent
        close_notify, after which it sends nothing. Raises :class:`RecordError` and
        :class:`AlertError`, after which the row is unusable.
        """
        if row in self._partial:
            data = self._partial.pop(row) + data
        # Nearly always: one whole record of application data.
        if (
            len(data) > _HEADER
            and data[0] == _APPLICATION
            and len(data) == _HEADER + (data[3] << 8 | data[4])
        ):
            kind, content = self._unseal(row, data[:_HEADER], data[_HEADER:])
            if kind == _APPLICATION and row not in self._message:
                return content, b"", False
            return self._judge(row, [(kind, content)], [])
        heard: list[bytes] = []
        try:
            return self._judge(row, self._records(row, data), heard)
        except (RecordError, AlertError) as error:
            error.plain = b"".join(heard)
            raise

    def _records(self, row: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The kind and content of each whole record; an incomplete one waits for the next read."""
        at, end = 0, len(data)
        while end - at >= _HEADER:
            header = data[at : at + _HEADER]
            length = header[3] << 8 | header[4]
            if header[0] != _APPLICATION:
                # Not encrypted: an alert of a peer that lost its keys, or another protocol (section
                # 5: unexpected_message).
                raise RecordError("unexpected_message", "a record that is not encrypted")
            if length > _MOST_CIPHERTEXT:
                raise RecordError("record_overflow", f"a record of {length} bytes")
            if end - at < _HEADER + length:
                break
            content = data[at + _HEADER : at + _HEADER + length]
            at += _HEADER + length
            yield self._unseal(row, header, content)
        if at < end:
            self._partial[row] = data[at:]

    def _unseal(self, row: int, header: bytes, sealed: bytes) -> tuple[int, bytes]:
        """A record's kind and content."""
        way = self._in
        number = way.numbers[row]
        cipher, length, _, _ = _SUITES[self._suite[row]]
        nonce = _NONCE.pack(way.nonces[row], way.counted[row] ^ number)
        if not _TAG < len(sealed) <= _MOST_CIPHERTEXT:
            alert = "record_overflow" if len(sealed) > _TAG else "bad_record_mac"
            raise RecordError(alert, f"a record of {len(sealed)} bytes")
        try:
            plain: bytes = cipher(way.keys[32 * row : 32 * row + length]).decrypt(
                nonce, sealed, header
            )
        except InvalidTag:
            raise RecordError("bad_record_mac", "a record that does not fit its key") from None
        way.numbers[row] = number + 1
        if len(plain) > _MOST_PLAINTEXT + 1:
            raise RecordError("record_overflow", f"{len(plain)} bytes in a record")
        # The kind is the last byte that is not padding (section 5.4).
        if not plain[-1]:
            plain = plain.rstrip(b"\0")
            if not plain:
                raise RecordError("unexpected_message", "a record of padding alone")
        return plain[-1], plain[:-1]

    def _judge(
        self, row: int, records: Iterable[tuple[int, bytes]], heard: list[bytes]
    ) -> tuple[bytes, bytes, bool]:
        """:meth:`feed` for ``records``. The application's bytes are added to ``heard``, where they
        are found after an error.
        """
        asked = False
        for kind, content in records:
            if row in self._message and kind != _HANDSHAKE:
                raise RecordError(
                    "unexpected_message", "another record in the middle of a handshake message"
                )
            if kind == _APPLICATION:
                heard.append(content)
            elif kind == _HANDSHAKE:
                asked = self._handshake(row, content) or asked
            elif kind != _ALERT:
                raise RecordError("unexpected_message", f"a record of kind {kind}")
            elif len(content) != 2:
                raise RecordError("decode_error", "an alert of another length than two bytes")
            elif content[1] == 0:
                # Later records are ignored (section 6.1).
                return b"".join(heard), b"", True
            elif content[1] != _ALERT_NUMBER["user_canceled"]:
                raise AlertError(ALERTS.get(content[1], f"alert {content[1]}"))
        # Several requests in a read get one key update (section 4.6.3), so a peer cannot cause
        # many.
        return b"".join(heard), self._update_ours(row) if asked else b"", False

    def _handshake(self, row: int, content: bytes) -> bool:
        """Handle messages after the handshake. True: the peer requests a key update."""
        if not content:
            raise RecordError("unexpected_message", "an empty handshake record")
        data = self._message.pop(row, b"") + content
        asked = False
        while data:
            if len(data) < 4:
                self._message[row] = data
                break
            length = int.from_bytes(data[1:4], "big")
            if data[0] not in (_NEW_SESSION_TICKET, _KEY_UPDATE):
                raise RecordError(
                    "unexpected_message",
                    f"a handshake message of type {data[0]} after the handshake",
                )
            if length > _MOST_MESSAGE or (data[0] == _KEY_UPDATE and length != 1):
                raise RecordError("decode_error", f"a handshake message of {length} bytes")
            if len(data) < 4 + length:
                self._message[row] = data
                break
            if data[0] == _KEY_UPDATE:
                if data[4] > 1:
                    raise RecordError("illegal_parameter", f"a key update that asks for {data[4]}")
                if len(data) > 5:
                    raise RecordError(
                        "unexpected_message", "a message after a key update, under the old key"
                    )
                self._in.update(row, self._suite[row])
                asked = asked or data[4] == 1
            data = data[4 + length :]
        return asked

    def _update_ours(self, row: int) -> bytes:
        """The record of a key update; later records are sealed with the new key."""
        record = self.seal(row, bytes((_KEY_UPDATE, 0, 0, 1, 0)), _HANDSHAKE)
        self._out.update(row, self._suite[row])
        return record
