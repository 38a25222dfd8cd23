"""Makes docs/atlas.md and its charts from records of the experiment atlas, which add cells or
rounds, with one plan on one machine.

python bench/atlas_doc.py experiment-atlas-*/record.json

With --heaps first, only the table of collected heaps is made anew, from records of those cells.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from experiments_doc import table

from asyncli.experiments import command_of, load, plan_of
from asyncli.experiments.atlas import CELLS
from asyncli.experiments.context import concluded
from asyncli.experiments.record import record_of
from asyncli.model.units import format_duration
from asyncli.report.experiment_report import draw, server_labels
from asyncli.report.figures.drawing import file_svg

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# The atlas: what one held connection costs

The same soak against each server of the lab, in each protocol that it speaks: memory and CPU time of one more held connection with occasional
heartbeats. For sizing, multiply by the connections that you hold; before you buy, measure your own server with your own configuration.

![Memory of one held connection in the clear](atlas.svg)

![Memory of one held connection over TLS](atlas-tls.svg)

"""
TAIL = """
## Limits of these figures

- They are not a ranking: the servers do different work. redis and memcached parse a word, Nchan keeps a channel's subscriber, nginx answers 200 without a
  file, the libraries call a program.
- They are not your server: no backend, no log, no cache, no message but the heartbeat. A WebSocket server's application state adds its own cost.
- They are not the cost of traffic: heartbeats come every 15 s on average.
- They are from one machine that ran client and server: compare ratios, not figures.

## Configuration

Limits on connections, requests and idle times are lifted, as each server's documentation advises for many idle connections. No server sends pings, except
NATS once. lighttpd ends a connection after 65,535 requests. `configs/` has the configurations of nginx, Apache, HAProxy, Caddy, lighttpd, mosquitto and
NATS, `asyncli/lab/` the programs on a library:

- permessage-deflate only in two cells, which send a short message compressed (`--ws-deflate --ws-message`), and `ws` with its defaults: the server's
  compression state is most of such a connection's cost.
- Proxies have two nginx with Nchan as backends, whose processes are not counted; both of a proxy's sockets are on its side.
- Varnish answers by itself (`synth`); each HTTP/2 connection has a thread.
- Python: `websockets` and `aiohttp` on asyncio's own loop, `uvicorn` with what `uvicorn[standard]` installs (uvloop, httptools, `websockets`). Over TLS
  asyncio zeroes a buffer of 256 KiB for each connection (asyncio/sslproto.py, `max_size`); of uvloop's only the used part takes memory.
- Node: `ws` without its list of clients. V8's heap grows and shrinks in steps, so its intervals are wide.
- Go: `gorilla` with a pool of write buffers, read buffers of 1,024 B, and a handler that returns (its examples/bufferpool); a goroutine for each
  connection. `gobwas` with an epoll set instead ("A Million WebSockets and Go").

## The cells

Each is one command, `asyncli experiment atlas --only NAME`.

| cell | server and protocol | plan keys |
|---|---|---|
"""


HEAPS = "A heap that is collected"


def main() -> None:
    if sys.argv[1:2] == ["--heaps"]:
        replace_heaps(Path(sys.argv[2]))
        return
    record, *others = (record_of(Path(path).read_bytes()) for path in sys.argv[1:])
    for other in others:
        for one in other.rounds:
            one["round"] = 1 + max(
                (before["round"] for before in record.rounds if before["step"] == one["step"]),
                default=0,
            )
            record.rounds.append(one)
        record.duration_s += other.duration_s
        record.environment["server"] = {
            **(record.environment.get("server") or {}),
            **(other.environment.get("server") or {}),
        }
    experiment = load(record.experiment)
    plan = plan_of(experiment, record.quick, record.plan)
    found, facts = concluded(experiment, plan, record.rounds), record.environment
    rounds = len({one["round"] for one in record.rounds})
    lines = [
        f"{server_labels(record)}; Linux {facts.get('kernel')}, {facts.get('cpus')} CPUs; "
        f"{rounds} round{'s' if rounds > 1 else ''} of {plan.connections:,} connections, "
        f"{format_duration(record.duration_s)}.",
        "",
        f"    {command_of(experiment, plan, record.quick)}",
        "",
    ]
    for number, each in enumerate(found.tables):
        lines += [
            *(["", f"**{each.title}**", ""] if number else []),
            *table(each),
            "",
            each.caption,
        ]
    lines += [f"\n- ({one.evidence})" for one in record.findings if one.severity != "info"]
    measured = {one["step"] for one in record.rounds}
    cells = []
    for name, one in CELLS.items():
        if name in measured:
            keys = " ".join(f"{key}={value!r}" for key, value in one.keys.items())
            cells.append(f"| `{name}` | {one.server}, {one.protocol} | {keys or 'default'} |")
    (DOCS / "atlas.md").write_text(
        HEAD + "\n".join(lines) + "\n" + TAIL + "\n".join(cells) + "\n", encoding="utf-8"
    )
    for name, chart in zip(("atlas", "atlas-tls"), found.charts, strict=True):
        (DOCS / f"{name}.svg").write_text(
            file_svg(draw(chart), name, chart.title), encoding="utf-8"
        )


def replace_heaps(path: Path) -> None:
    """Put the table of collected heaps of a record into the page, in place of the one there."""
    record = record_of(path.read_bytes())
    experiment = load(record.experiment)
    plan: Any = plan_of(experiment, record.quick, record.plan)
    found = concluded(experiment, plan, record.rounds)
    (heaps,) = [table for table in found.tables if table.title == HEAPS]
    page = DOCS / "atlas.md"
    before, _, after = page.read_text(encoding="utf-8").partition("\n## Limits of these figures")
    kept = before.partition(f"\n**{HEAPS}**")[0].rstrip("\n")
    cells = sorted({one["step"] for one in record.rounds})
    only = " ".join(f"--only {name}" for name in cells)
    size = f"--rounds {plan.rounds} --connections {plan.connections}"
    command = f"asyncli experiment atlas {size} {only}"
    lines = [
        "",
        f"**{HEAPS}**",
        "",
        f"{server_labels(record)}; {plan.rounds} rounds of {plan.connections:,} connections.",
        "",
        f"    {command}",
        "",
        *table(heaps),
        "",
        heaps.caption,
    ]
    text = kept + "\n" + "\n".join(lines) + "\n\n## Limits of these figures" + after
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
