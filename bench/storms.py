"""What storms, drops, a reload, a restart and churn do to a lab server, and whether each connection is
accounted for.

    python bench/storms.py [--server nginx] [--connections 50000] [--tls] [--ramp 2000/s] [--churn-for 60]
        [--only storm reload]

For each event a new server and a soak of its own. Printed: after how long 50, 90, 99 and 100 % were
back by their first answers, connects and failures, what was lost (nothing should be), whether our
counts agree with the server's, how late asyncli connected, the server's memory and CPU, and the
cost of a connection beside that of the same soak without an event.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import psutil
from common import command, machine, settle

from asyncli.api import soak
from asyncli.lab import choose
from asyncli.model.plan import Layer, build_plan
from asyncli.report.summary import Summary, summarise
from asyncli.store.reader import read_run

EVENTS: dict[str, dict[str, Any]] = {
    "none": {},
    "storm, now": {"events": [("10s", "storm")], "reconnect": "now"},
    "storm, jitter:10s": {"events": [("10s", "storm")], "reconnect": "jitter:10s"},
    "storm, backoff:1s..60s": {"events": [("10s", "storm")], "reconnect": "backoff:1s..60s"},
    "drop 30%, jitter:10s": {"events": [("10s", "drop 30%")], "reconnect": "jitter:10s"},
    "reload, jitter:10s": {"events": [("10s", "run {reload}")], "reconnect": "jitter:10s"},
    "restart, jitter:10s": {"events": [("10s", "run {restart}")], "reconnect": "jitter:10s"},
}
# What reloads a server of the lab; the others have no reload. A HAProxy reloads by one that takes
# its place.
RELOADS = {"nginx": "kill -HUP {pid}", "haproxy": "{argv} -D -sf {pid} -p {pid_file}"}
# Until the old one has ended (the lab reaps it later), then its own command line again. A process
# whose first thread has ended has its ports until the last thread has: a HAProxy with 10,000
# connections for 0.2 s.
RESTART = """kill -TERM {pid}
while grep -q "^State:.[^Z]" /proc/{pid}/status || ls /proc/{pid}/task | grep -qvx {pid}; do
    sleep 0.05
done
{argv} >/dev/null 2>&1 &
echo $! > {pid_file}
"""


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="nginx")
    parser.add_argument("--connections", type=int, default=50_000)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--hold", type=int, default=45)
    parser.add_argument("--ramp", default="2000/s")
    parser.add_argument("--churn-for", type=int, default=0, help="seconds of a soak with churn")
    parser.add_argument("--only", nargs="+", help="the rows whose names begin so")
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}")
    events = dict(EVENTS)
    if options.churn_for:
        events["churn 1%/m"] = {"churn": "1%/m", "hold": options.churn_for}
    with tempfile.TemporaryDirectory() as folder:
        for name, asked in events.items():
            if name.startswith("reload") and options.server not in RELOADS:
                continue
            if options.only and not name.startswith(tuple(options.only)):
                continue
            summary = await summary_of(options, asked, Path(folder) / "run.db")
            show(name, summary)


async def summary_of(options: argparse.Namespace, asked: dict[str, Any], path: Path) -> Summary:
    pid_file = path.with_suffix(".pid")
    for left in (path, pid_file):
        left.unlink(missing_ok=True)
    more = {}
    if options.server == "mosquitto":
        more["more_lines"] = "sys_interval 1"
    async with choose(options.server, tls=options.tls, **more) as server:
        values: dict[str, Any] = {
            "urls": [server.url],
            "connections": options.connections,
            "ramp": options.ramp,
            "hold": options.hold,
            "keepalive": 30,
            **asked,
        }
        if server.status_url:
            values["status_url"] = server.status_url
        if options.server == "mosquitto":
            # Its counts are topics of its own.
            values["server_metrics"] = [server.url]
        if options.tls:
            values["insecure"] = True
        if "events" in values:
            commands = commands_of(options.server, server.pid, pid_file)
            values["events"] = [(at, words.format(**commands)) for at, words in values["events"]]
        await soak(build_plan([Layer("--{key}", values)]), path)
        if pid_file.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
    settle()
    return summarise(read_run(path))


def commands_of(name: str, pid: int, pid_file: Path) -> dict[str, str]:
    """The commands that reload and restart a server of the lab. What takes its place is ended with
    the bench, by ``pid_file``.
    """
    # nginx writes a title before its command line, and HAProxy's -db keeps it from a reload.
    argv = " ".join(psutil.Process(pid).cmdline()).removeprefix("nginx: master process ")
    argv = argv.replace(" -db ", " ")
    commands = {}
    for what, text in (("reload", RELOADS.get(name, "")), ("restart", RESTART)):
        script = pid_file.with_name(f"{what}.sh")
        script.write_text(text.format(pid=pid, argv=argv, pid_file=pid_file))
        commands[what] = f"sh {script}"
    return commands


def show(name: str, summary: Summary) -> None:
    counts = summary.connections
    cost = summary.cost.server_user
    shown = (
        "unknown"
        if cost is None
        else f"{cost.bytes_per_connection:,.0f} B ± {cost.half_width:,.0f}"
    )
    print(
        f"{name:24} {summary.run.verdict}: held {counts.held:,}, lost {counts.lost}, failed "
        f"{counts.failed}, opened {counts.opened:,}, counts agree: {summary.reconciliation.agrees}; "
        f"server {shown}",
        flush=True,
    )
    for event in summary.events or ():
        back = event.back
        assert event.latency_ms
        assert event.lateness_ms
        assert event.server
        print(
            f"    ended {event.ended:,}, back after {back.p50_s} / {back.p90_s} / {back.p99_s} / "
            f"{back.all_s} s, not back {event.not_back}; {event.attempts:,} connects, failed "
            f"{event.failures}, phantoms {event.phantoms}; overflows {event.listen_overflows}; late "
            f"{event.lateness_ms.p50} / {event.lateness_ms.max} ms; others' heartbeats p99 "
            f"{event.latency_ms.others_p99} ms, outside {event.latency_ms.outside_p99} ms; server "
            f"{event.server.memory_before} / {event.server.peak} / {event.server.after} B, "
            f"{event.server.cpu_s} s",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
