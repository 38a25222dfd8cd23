"""Findings of where the server is: what listens, at which addresses, and its program."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.records import NOTHING_LISTENS
from asyncli.units import format_duration

#: What to do where nothing answers.
SEE_SERVER = "see that the server runs, and that the URL is its own"


@finding(NOTHING_LISTENS, "error")
def nothing_listens(what: str, url: str | None, waited_s: float | None, so: str) -> Words:
    """Nothing listens on this host where the plan aims, so nothing was begun. ``url``: where its port is listened on instead;
    ``waited_s``: how long --wait-for-server waited, null for a command without that flag.
    """
    remedy = SEE_SERVER if url is None else f"use {url}"
    if waited_s:
        what += f", and --wait-for-server waited {format_duration(waited_s)} in vain"
    elif waited_s is not None and url is None:
        remedy += "; --wait-for-server 30s waits for it"
    return Words(f"{what}: {so}", f"{remedy}; --force tries all the same")


@finding("address_dropped", "warning")
def address_dropped(address: str) -> Words:
    """Every connect to an address failed while another address of the same name answered, and took over its share."""
    return Words(
        f"every connect to {address} failed while another address of its name answered: its share went to the others",
        f"see that the server listens at {address} and that this host has a way there, or leave it out",
    )


@finding("server_program_not_run", "warning")
def server_program_not_run(command: str, why: str, distrusted: bool) -> Words:
    """The server's program was not asked for its version. ``distrusted``: others than root and asyncli's user can change it."""
    evidence = f"`{command}` was not run, so the server's version may be unknown: {why}"
    if distrusted:
        return Words(
            evidence,
            "asyncli runs what root and its own user alone can change: chown root and chmod go-w the file and its folders",
        )
    return Words(evidence, "restart the server if its program was upgraded meanwhile", "info")
