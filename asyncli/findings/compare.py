"""Findings of a comparison: what makes its runs hard to compare, and differences besides the
server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncli.findings import Words, finding
from asyncli.findings.host import host_shared
from asyncli.findings.server import other_clients
from asyncli.model.units import format_bytes, format_count, format_duration

#: Fact -> its value in each run.
Differs = Mapping[str, Sequence[Any]]
_BYTES = ("memory_bytes", "limits.cgroup_memory_limit")
# Numbers that are no counts.
_IDENTIFIERS = ("plan.seed", "plan.server_pid")
#: The program that served, without its version.
SERVED_BY = "served_by"
#: Prefix of the server's directives.
DIRECTIVE = "server.directives."
# The sentence has this many; the fields have all.
_NAMED = 6
_NAMES = {
    SERVED_BY: "program",
    "local": "both ends on one host",
    "memory_bytes": "memory",
    "cpus": "CPUs",
    "cpu_model": "CPU",
    "kernel": "Linux",
    "machine": "architecture",
    "python": "Python",
    "workers": "asyncli's workers",
    "sources": "source addresses",
    "plan.urls": "URLs",
    "plan.status_url": "status URL",
}


def in_words(key: str, value: Any) -> str:
    """A fact's value as text: ``plan.hold_s`` 600.0 is "10 min"."""
    if value is None:
        return _none_in_words(key)
    if key.startswith(DIRECTIVE) and str(value).startswith("#"):
        return f"another text ({value})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int | float):
        return _number_in_words(key, value)
    return str(value)


def _none_in_words(key: str) -> str:
    if key.startswith(DIRECTIVE):
        return "not said"
    if key == "plan.hold_s":
        return "forever"
    if key.startswith("plan."):
        return "not set"
    return "not known"


def _number_in_words(key: str, value: float) -> str:
    if key.endswith("_s"):
        return format_duration(value)
    if key in _BYTES:
        return format_bytes(value)
    if isinstance(value, int) and key not in _IDENTIFIERS:
        return format_count(value)
    return str(value)


def named(key: str) -> str:
    """A fact's key as a plan file or flag would name it: ``plan.keepalive_s`` is "keepalive"."""
    if key in _NAMES:
        return _NAMES[key]
    for part in (DIRECTIVE, "sysctls."):
        if key.startswith(part):
            return key.removeprefix(part)
    return key.removeprefix("plan.").removesuffix("_s").replace(".", " ").replace("_", " ")


def _listed(differs: Differs) -> str:
    facts = []
    for key, values in differs.items():
        in_each_run = " against ".join(in_words(key, value) for value in values)
        facts.append(f"{named(key)} {in_each_run}")
    if len(facts) > _NAMED:
        return f"{', '.join(facts[:_NAMED])} and {len(facts) - _NAMED} more"
    return ", ".join(facts)


@finding("compare_burst", "warning", "repeat both runs to see whether it happens again")
def compare_burst(run: str, count: int, of: int, at_s: float) -> str:
    """Most losses of a run fell into one second. They are one event, but the interval of the loss
    rate counts each.
    """
    return (
        f"{run}: {count:,} of {of:,} losses in one second, at {format_duration(at_s)}: "
        f"one event, counted {count:,} times"
    )


@finding("compare_company", "warning")
def compare_company(run: str, host: str, ours: int, others: int, perhaps_proxy: bool) -> Words:
    """Other programs opened or closed many TCP sockets during a run (host_shared)."""
    shared = host_shared(host, ours, others, perhaps_proxy)
    return Words(f"{run}: {shared.evidence}", shared.remedy)


@finding("compare_clients", "warning", other_clients.remedy)
def compare_clients(run: str, before: int, during: int, ours: int, by_page: bool = False) -> str:
    """Other clients held connections on the server of a run (other_clients): its memory is of all,
    and they delay its answers.
    """
    return f"{run}: {other_clients(before, during, ours, by_page=by_page).evidence}"


@finding("compare_invalid", "error", "repeat it as its own report says")
def compare_invalid(run: str, why: str) -> str:
    """A run is invalid: its latencies and losses are not compared. Memory and CPU do not depend on
    what makes a run invalid.
    """
    return f"{run} is invalid, so its latencies and losses are not compared: {why}"


@finding("compare_incomplete", "warning", "compare runs that finished")
def compare_incomplete(run: str, right: bool) -> str:
    """A run has no end; its records are compared. ``right``: they can be relied on."""
    if right:
        return f"{run} has no end: it was killed, or is still running; its numbers so far are right"
    return f"{run} has no end: it was killed, or is still running"


@finding("compare_plan", "warning", "repeat one of them with the plan of the other")
def compare_plan(differs: Differs) -> str:
    """The runs have different plans, which may explain their differences."""
    return f"different plans: {_listed(differs)}"


@finding("compare_host", "warning", "run both on the same host")
def compare_host(differs: Differs) -> Words:
    """The runs were made on different hosts, or of different programs that served, which may
    explain their differences.
    """
    if SERVED_BY in differs:
        return Words(
            f"different programs served: {_listed(differs)}",
            "see whether the URL is the right one, with nothing before the server; or compare with "
            "runs of the same program",
        )
    return Words(f"different hosts: {_listed(differs)}")


@finding("compare_asyncli", "warning", "repeat the older with the newer one")
def compare_asyncli(differs: Differs) -> str:
    """The runs were made by different versions of asyncli, which may measure differently."""
    return f"different versions of asyncli: {_listed(differs)}"


@finding("compare_sysctls", "warning", "set them to the same values, and repeat one of the runs")
def compare_sysctls(differs: Differs) -> str:
    """The kernel had different settings, which may explain the differences of the runs."""
    return f"different kernel settings: {_listed(differs)}"


@finding("compare_same", "info")
def compare_same(server: str, configured: bool) -> str:
    """The runs have no differing facts, and show how much repeats differ. ``configured``: the
    server's configuration is known.
    """
    if configured:
        return f"same server ({server}), configuration and plan: differences are those of repeats"
    return f"no recorded fact distinguishes these runs ({server}; its configuration is unknown)"
