"""Findings of a comparison: what keeps its runs from being compared, and what else than the server they differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncli.findings import Words, finding
from asyncli.findings.host import host_shared
from asyncli.units import format_bytes, format_count, format_duration

#: A fact of the plan, the server or the host -> its value in each run.
Differs = Mapping[str, Sequence[Any]]
# So many are named; the fields have all.
_NAMED = 6
_NAMES = {
    "local": "both ends on one host", "memory_bytes": "memory", "cpus": "CPUs", "cpu_model": "CPU", "kernel": "Linux",
    "machine": "architecture", "python": "Python", "workers": "asyncli's workers", "sources": "source addresses",
    "plan.urls": "URLs", "plan.status_url": "status URL",
}  # fmt: skip


def in_words(key: str, value: Any) -> str:
    """A fact's value for reading: ``plan.hold_s`` 600.0 as "10 min"."""
    if value is None:
        return "forever" if key == "plan.hold_s" else "not known" if not key.startswith("plan.") else "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if key.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    if key in ("memory_bytes", "limits.cgroup_memory_limit") and isinstance(value, int | float):
        return format_bytes(value)
    return format_count(value) if isinstance(value, int) and key not in ("plan.seed", "plan.server_pid") else str(value)


def named(key: str) -> str:
    """A fact's key as a plan file or flag would name it: ``plan.keepalive_s`` is "keepalive"."""
    if key in _NAMES:
        return _NAMES[key]
    if key.startswith("sysctls."):
        return key.removeprefix("sysctls.")
    return key.removeprefix("plan.").removesuffix("_s").replace(".", " ").replace("_", " ")


def _listed(differs: Differs) -> str:
    words = [f"{named(key)} {' against '.join(in_words(key, value) for value in values)}" for key, values in differs.items()]
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more


@finding("compare_burst", "warning")
def compare_burst(run: str, count: int, of: int, at_s: float) -> Words:
    """Most losses of a run fell in one second: one event, which the interval of its rate takes for many."""
    return Words(
        f"{run}: {count:,} of its {of:,} losses fell in one second, at {format_duration(at_s)}: one event, which the interval of "
        "the rate takes for many",
        "repeat both runs to see whether it comes again",
    )


@finding("compare_company", "warning")
def compare_company(run: str, host: str, ours: int, others: int) -> Words:
    """Other programs opened or closed many TCP sockets while a run lasted (host_shared)."""
    shared = host_shared(host, ours, others)
    return Words(f"{run}: {shared.evidence}", shared.remedy)


@finding("compare_invalid", "error")
def compare_invalid(run: str, why: str) -> Words:
    """The generator was the limit of a run, so its numbers say nothing of the server."""
    return Words(f"{run} is invalid: {why}", "do not rely on its numbers; see its own report")


@finding("compare_incomplete", "warning")
def compare_incomplete(run: str, right: bool) -> Words:
    """A run has no end, and is compared by what there is of it. ``right``: that can be relied on."""
    rest = "; what it says is right as far as it goes" if right else ""
    return Words(f"{run} has no end: it goes on, or was killed{rest}", "compare runs that came to their end")


@finding("compare_failed", "info")
def compare_failed(run: str, why: str) -> Words:
    """A run failed by its own verdict."""
    return Words(f"{run} failed: {why}", "see its own report")


@finding("compare_plan", "warning")
def compare_plan(differs: Differs) -> Words:
    """The runs did different things to their servers, so what differs may come of that."""
    return Words(f"these differ in more than the server: {_listed(differs)}", "repeat one of them with the plan of the other")


@finding("compare_host", "warning")
def compare_host(differs: Differs) -> Words:
    """The runs were made on hosts that differ, so what differs may come of that."""
    return Words(f"these are from hosts that differ: {_listed(differs)}", "run both on the same host")


@finding("compare_asyncli", "warning")
def compare_asyncli(differs: Differs) -> Words:
    """The runs were made by different versions of asyncli, which may measure differently."""
    return Words(f"these were made by different versions of asyncli: {_listed(differs)}", "repeat the older with the newer one")


@finding("compare_sysctls", "warning")
def compare_sysctls(differs: Differs) -> Words:
    """The kernel was set differently for the runs, so what differs may come of that."""
    return Words(f"the kernel was set differently: {_listed(differs)}", "set them alike, and repeat one of them")


@finding("compare_same", "info")
def compare_same(server: str, configured: bool) -> Words:
    """Nothing that was recorded tells the runs apart: they show what repeats differ by. ``configured``: the server's
    configuration is known, and the same.
    """
    if not configured:
        return Words(f"nothing that was recorded tells these runs apart ({server}; of its configuration nothing is known)")
    return Words(f"these are runs of the same server ({server}), configuration and plan: what differs is what repeats differ by")


@finding("compare_lateness", "warning")
def compare_lateness(run: str, later: bool) -> Words:
    """asyncli itself was later in one run than in the other, which makes its latencies longer."""
    return Words(
        f"asyncli itself sent its heartbeats {'later' if later else 'less late'} in {run}",
        "compare runs with the same load on the host",
    )
