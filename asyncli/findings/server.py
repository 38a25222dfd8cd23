"""Findings of the server: its listeners, addresses and program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from asyncli.findings import Words, finding
from asyncli.model.records import NOTHING_LISTENS
from asyncli.model.units import format_duration

# This many addresses are named.
_NAMED = 3
#: What to do if nothing answers.
SEE_SERVER = "see that the server runs and that the URL is right"
#: Findings which say that the server's numbers may be another process's: they stand before these.
OF_ANOTHER = ("server_not_listening", "server_took_no_part")


@finding(NOTHING_LISTENS, "error")
def nothing_listens(what: str, url: str | None, waited_s: float | None, so: str) -> Words:
    """Nothing listens on this host at the plan's target, so the run did not start. ``url``: another address with that port open;
    ``waited_s``: how long --wait-for-server waited (null: the command has no such flag).
    """
    remedy = SEE_SERVER if url is None else f"use {url}"
    if waited_s:
        what += f", also after --wait-for-server {format_duration(waited_s)}"
    elif waited_s is not None and url is None:
        remedy += "; --wait-for-server 30s waits for it"
    return Words(f"{what}: {so}", f"{remedy}; --force starts anyway")


@finding("address_dropped", "warning")
def address_dropped(address: str) -> Words:
    """No connect to one address of a name succeeded, but to another: an attempt fails only once each address was tried."""
    return Words(
        f"{address} accepted no connect, while another address of its name did; attempts continued there and count once",
        f"see that the server listens at {address} and that this host has a route there, or leave it out",
    )


@finding("address_dead", "error")
def address_dead(address: str, others: Sequence[str]) -> Words:
    """The first connects to the address of one URL failed, while one of the ``others`` accepted: its share was not opened."""
    who = " or ".join(others) if len(others) <= _NAMED else f"one of {len(others)} others"
    return Words(
        f"{address} accepted none of its first connects, while {who} did",
        f"see that the server listens at {address}, or leave that URL out",
    )


@finding("server_program_not_run", "warning")
def server_program_not_run(command: str, why: str, distrusted: bool) -> Words:
    """The server's program was not run to read its version. ``distrusted``: users other than root and asyncli's can change it."""
    evidence = f"the server's version may be unknown: `{command}` was not run: {why}"
    if not distrusted:
        return Words(evidence, "restart the server if its program was upgraded meanwhile", "info")
    return Words(
        evidence, "asyncli runs only files that root or its own user owns: chown root and chmod go-w the file and its folders"
    )


def find_by_user(users: Collection[int]) -> str:
    """The flag that names a server whose listening sockets ``users`` opened (none: unknown)."""
    whose = ",".join(map(str, sorted(users)))
    return f"--server-pid PID (find it by its name: pgrep -a{f'u {whose}' if whose else ''} NAME)"


@finding("server_not_listening", "warning")
def server_not_listening(
    flag: str, name: str, pid: int, where: str, listeners: Sequence[Mapping[str, object]], users: Sequence[int]
) -> Words:
    """The plan names a process by ``flag``, but others listen at its target: ``listeners`` (``name``, ``pid``), or those of
    ``users`` if they are hidden. Right for a server behind a proxy.
    """
    others = [f"{one['name']} (pid {one['pid']})" for one in listeners] or [f"a process of user {one}" for one in users]
    does = f"{' and '.join(others)} {'does' if len(others) == 1 else 'do'}"
    remedy = f"leave {flag} out" if listeners else find_by_user(users)
    return Words(
        f"{name} (pid {pid}), which {flag} names, does not listen on {where}, but {does}: the memory and CPU of {name} may be "
        "unrelated to these connections",
        f"{remedy}, unless {name} is a server behind {'that one' if len(others) == 1 else 'those'}",
    )


@finding("server_took_no_part", "warning")
def server_took_no_part(pid: int | None, named: bool, answered: int, cpu_s: float) -> Words:
    """The processes taken for the server used less CPU than any server needs for the answers, and opened no descriptor for the
    connections, so they are others. ``named``: by the plan.
    """
    who, remedy = "the process" if pid is None else f"process {pid}", "name the one that serves the URL with --server-pid"
    did = f"with its children it used {format_duration(cpu_s)} of CPU for {answered:,} answers, and opened nothing for them"
    return Words(f"{who} is not the server: {did}", f"{remedy}, or run asyncli as root, which finds it" if named else remedy)


@finding("event_stream", "warning", "hold the streams: --protocol sse")
def event_stream() -> str:
    """Answers have the type text/event-stream: its clients hold one answer open, while heartbeats ask for a new one each."""
    return "the server answers with an event stream (text/event-stream), which heartbeats do not hold open"
