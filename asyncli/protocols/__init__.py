"""What is spoken on connections. To add a protocol: a file here, and its line below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncli.protocols.http1 import Http1, Scanner
from asyncli.protocols.interface import Protocol, Reader


def new_protocol(
    name: str, method: str, requests: Sequence[bytes], entropy: Callable[[int], bytes], message: bytes = b""
) -> Protocol:
    """What the held connections of one table speak; ``requests`` has the bytes of a heartbeat for each URL of the plan, or of the
    first words; ``entropy`` gives so many random bytes; ``message``: what comes back as a heartbeat.
    """
    if name == "websocket":
        from asyncli.protocols.websocket import WebSocket  # hashlib, and OpenSSL with it, that HTTP does not owe

        return WebSocket(requests, entropy, message)
    return Http1(method, requests)


def new_reader(method: str) -> Reader:
    """What reads one answer of a bench."""
    return Scanner(method)
