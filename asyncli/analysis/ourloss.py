"""With what of asyncli's own connections were lost, by what the run noted: a process, or a client host of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncli.records import HOST_LOST, RESUMED, Finding

# So many hosts are named.
_NAMED = 3


class With(NamedTuple):
    """What they were lost with, "a client host (vm at 10.0.0.9)", and where to look for why."""

    what: str
    remedy: str


def lost_with(findings: Sequence[Finding], whose: str) -> With:
    """By the findings of the run file. ``whose`` own processes are, in that sentence: "its"."""
    # The file of an older asyncli has no fields.
    hosts = list(dict.fromkeys(str(one.fields.get("host", "its name is not known")) for one in findings if one.code == HOST_LOST))
    of_process = "see the finding about that process, or about the interruption of a run that was resumed"
    if not hosts:
        return With(f"a process of {whose} own", of_process)
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    hosts_named = f"{'a client host' if len(hosts) == 1 else 'client hosts'} ({', '.join(hosts[:_NAMED])}{more})"
    of_host = f"see the finding {HOST_LOST} about {'that host' if len(hosts) == 1 else 'each of them'}"
    if not any(one.code == "worker_lost" or (one.code == RESUMED and one.fields.get("held")) for one in findings):
        return With(hosts_named, of_host)
    return With(f"{hosts_named}, and processes of {whose} own", f"{of_host}; and {of_process}")
