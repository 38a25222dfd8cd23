"""Bytes for the reader of raw TCP. Checks: any split has one outcome, which is that of Python's regexes and slices on the whole."""

from __future__ import annotations

import os
import re
from random import Random
from typing import NamedTuple

from chance import maybe, mutated
from of_http1 import pieces

from asyncli.model.template import Fields
from asyncli.protocols.interface import ANSWER, ESTABLISHED, ProtocolError
from asyncli.protocols.settings import TcpSettings
from asyncli.protocols.tcp import Tcp

_PATTERNS = ("^22", "ok$", "^$", ".", "a|b", "[^\\x00]")


class Case(NamedTuple):
    """``data``, read in pieces at ``cuts``; ``greets``: it is expected as a greeting."""

    data: bytes
    cuts: tuple[int, ...]
    expect: str
    greets: bool


def generate(chance: Random) -> Case:
    """A right answer, perhaps mutated."""
    kind = chance.randrange(3)
    size, pattern = 1 + chance.randrange(12), chance.choice(_PATTERNS)
    exact = bytes(chance.choice(b"+PONG\r\n\\/") for _ in range(size))
    expect = ("".join(f"\\x{byte:02x}" for byte in exact), f"{size} bytes", f"/{pattern}/")[kind]
    data = (exact, bytes(size), chance.choice((b"220 ok\r\n", b"ok\n", b"\r\n", b"ab\n", b"\0\n")))[kind]
    data += bytes(chance.choice(b"ab\n\0") for _ in range(chance.randrange(4)))
    if maybe(chance, 4):
        data = mutated(chance, data)
    cuts = tuple(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
    return Case(data, cuts, expect, maybe(chance, 3))


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    expected = oracle(case)
    if case.greets and expected:
        expected = min(expected, 0)
    for parts in ([case.data], pieces(case.data, case.cuts)):
        assert read(parts, case) == expected, f"{read(parts, case)} of {parts}, and {expected}"
    return "refused" if expected is None else "accepted" if expected >= 0 else "waits"


def read(parts: list[bytes], case: Case) -> int | None:
    """The end of the expected bytes; None: something else came, -1: incomplete."""
    protocol, at = Tcp(TcpSettings(b"x", case.expect, case.expect if case.greets else ""), Fields(), os.urandom), 0
    if protocol.handshake is not None:
        protocol.handshake(0, 0)
    for part in filter(None, parts):
        try:
            event = protocol.feed(0, part, not case.greets)
        except ProtocolError as error:
            assert len(str(error)) < 500
            return None if error.answer is None else at + len(part) - len(error.answer.rest)
        at += len(part)
        if event is not None:
            assert event.kind == (ESTABLISHED if case.greets else ANSWER)
            assert not protocol.partial
            return 0 if case.greets else at - len(event.rest)
    return -1


def oracle(case: Case) -> int | None:
    """The same, from the whole at once."""
    data, expect = case.data, case.expect
    if expect.endswith(" bytes"):
        size = int(expect.split()[0])
        return size if len(data) >= size else -1
    if expect.startswith("/"):
        line, end, _ = data.partition(b"\n")
        if not end:
            return -1
        return len(line) + 1 if re.search(expect[1:-1].encode(), re.sub(rb"[\r\n]*\Z", b"", line)) else None
    exact = bytes.fromhex(expect.replace("\\x", ""))
    common = min(len(exact), len(data))
    return None if data[:common] != exact[:common] else len(exact) if common == len(exact) else -1
