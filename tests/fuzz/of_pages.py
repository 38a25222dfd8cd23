"""Mutated status pages. Checks: read or refused in one line; counts are finite and not negative; line ends make no difference."""

from __future__ import annotations

import math
from random import Random

from chance import ODD_TEXTS, maybe, mutated, several

from asyncli.collect.status_pages import NotStatusPage, all_frontends, parse_page

_SPACES = ("", " ", "  ", "\t", "\n", "\n\n", " \n ")
_APACHE_NAMES = (
    "ServerVersion", "ServerMPM", "Total Accesses", "BusyWorkers", "IdleWorkers", "Processes", "ConnsTotal", "ConnsAsyncKeepAlive", "Scoreboard", "Uptime", "",
)  # fmt: skip
_APACHE_VALUES = ("prefork", "event", "4", "0", "1", "250", "", "-1", "1.5", "___KK_KW_", "RWK" * 20, "x: y", "²", "٣")
_COLUMNS = (
    "pxname", "svname", "scur", "stot", "conn_tot", "req_tot", "qcur", "", "pxname", "svname", "scur", '"a', 'b"', "conn_tot ", "scur\x85",
)  # fmt: skip
_CELLS = ("lab", "stats", "Stats_x", "FRONTEND", "FRONTEND", "BACKEND", "3", "5", "0", "", "-1", "2.5", '"3"', '"a,b"', '"', "1" * 25, "x" * 140_000)
_NUMBERS = ("0", "1", "7", "15001", "", "-1", "1.5", "٣", "9" * 20, "9" * 400, "many")
_PIECES = ("\n", " ", "\n ", "1", "0\n", "a", ",", '"', "\r\n", "\r", "FRONTEND,", "x: y\n", "Scoreboard: K\n", "Active connections: 1 \n", "\x1b", "lab,FRONTEND,1\n")


def generate(chance: Random) -> str:
    """A page of one of the three kinds, perhaps mutated."""
    text = chance.choice((_nginx, _apache, _haproxy))(chance)
    if not maybe(chance, 3):
        text = mutated(chance, text, ODD_TEXTS)
    if maybe(chance, 500):
        at = chance.randrange(len(text) + 1)
        piece = chance.choice(_PIECES)
        text = text[:at] + piece * (chance.choice((1_000, 20_000, 150_000)) // len(piece)) + text[at:]
    return text


def _number(chance: Random) -> str:
    return chance.choice(_NUMBERS) if maybe(chance, 8) else str(chance.randrange(100_000))


def _space(chance: Random) -> str:
    return chance.choice(_SPACES) if maybe(chance, 8) else " "


def _nginx(chance: Random) -> str:
    one, gap = lambda: _number(chance), lambda: _space(chance)
    extra = f" {one()}" if maybe(chance, 5) else ""
    return (
        f"Active connections:{gap()}{one()}{gap()}\nserver accepts handled requests{' request_time' if extra else ''}\n"
        f"{gap()}{one()}{gap()}{one()}{gap()}{one()}{extra}{gap()}\nReading:{gap()}{one()}{gap()}Writing:{gap()}{one()}{gap()}Waiting: {one()} \n"
    )


def _apache(chance: Random) -> str:
    lines = [f"{chance.choice(_APACHE_NAMES)}: {chance.choice(_APACHE_VALUES)}" for _ in range(chance.randrange(6))]
    lines += [f"BusyWorkers: {_number(chance)}", f"IdleWorkers: {_number(chance)}", "Scoreboard: " + "".join(several(chance, 6, "_WKR.SG"))]
    chance.shuffle(lines)
    return "127.0.0.1\n" + "\n".join(lines) + "\n"


def _haproxy(chance: Random) -> str:
    columns = ["pxname", *(["svname"] if not maybe(chance, 8) else []), *several(chance, 6, _COLUMNS)]
    lines = [",".join(columns)]
    for _ in range(chance.randrange(4)):
        cells = [chance.choice(_CELLS[:-1]) for _ in columns]
        cells[:2] = [chance.choice(("lab", "stats")), "FRONTEND"][: len(cells)]
        if maybe(chance, 6):
            cells[chance.randrange(len(cells)) :] = several(chance, 3, ODD_TEXTS)
        if maybe(chance, 2_000):
            cells[chance.randrange(len(cells) or 1) :] = [_CELLS[-1]]
        lines.append(",".join(cells))
    return "# " + "\n".join(lines) + "\n"


def check(text: str) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    in_all = all_frontends(f"{text}<b>maxconn = </b> {text[-5:]};current conns = {text[:5]};")
    assert in_all is None or in_all.limit > 0
    try:
        page = parse_page(text)
    except NotStatusPage as error:
        assert len(str(error).splitlines()) == 1
        assert str(error).isprintable()
        assert len(str(error)) < 200
        return "refused"
    assert all(math.isfinite(value) and value >= 0 for value in page.values.values()), page.values
    assert all(name.startswith("status.") for name in page.values)
    if len(text) < 4_000 and "\r" not in text:
        assert parse_page(text.replace("\n", "\r\n")) == page, "CRLF is read otherwise"
    return f"accepted, {page.kind}"
