"""What is spoken on connections. To add a protocol: a file here, and its line below."""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.protocols.http1 import Http1, Scanner
from asyncli.protocols.interface import Protocol, Reader


def new_protocol(method: str, requests: Sequence[bytes]) -> Protocol:
    """What the held connections of one table speak; ``requests`` has the bytes of a heartbeat for each URL of the plan."""
    return Http1(method, requests)


def new_reader(method: str) -> Reader:
    """What reads one answer of a bench."""
    return Scanner(method)
