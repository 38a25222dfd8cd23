"""Samples of several runs on one clock: the server's side once, each host once, and what is the clients' own added up. Pure.

The server's side (``status.``, ``server.``, and of its host ``kernel.``, ``host.`` and ``tcp.``) is that of whoever read most of
it; before its first sample and after its last, those of the others who read the same stand in. Of client hosts apart from the
server's, ``kernel.``, ``host.`` and ``tcp.`` add up under ``client.``; where nobody watched the server's host, under their own
names. What each network namespace counts for itself is that of the server's, and of the clients' others, in the same way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from asyncli.analysis.series import Series, began_anew, series
from asyncli.merge.parts import Client
from asyncli.records import SILENT, Finding, Sample
from asyncli.samples import Samples, metrics_of

_HOST = ("kernel.", "host.")
# proc_pid_net(5): sockstat, netstat and snmp are of one network namespace.
_NETWORK = ("tcp.", "kernel.tcp_inuse", "kernel.tcp_orphan", "kernel.tcp_tw")
_OWN = ("generator.", "session.")
# A value each time that it happened, to whichever client.
_EVENTS = ("clock.suspended_s", SILENT)
_PAGE = "status."
_POLLER = ("status.polls", "status.connects", "status.unanswered")
# Two pages of one server, read within a second of each other, differ by what it counted in the second before and after.
_APART_S = 1.0
# So many pages running are no chance; and of two readings of the same processes' memory, this share.
_PAGES_THAT_TELL, _SAME_MEMORY = 3, 0.05
_LEAST_MEMORY = 1e6
Wanted = Callable[[str], bool]


class Side(msgspec.Struct):
    """The samples of the merged run, whose server's side they have (None: nobody's), whose page, and what does not fit."""

    samples: Samples
    server: Client | None
    page: Client | None
    #: The server's processes were read.
    processes: bool
    findings: list[Finding]


def common_samples(clients: Sequence[tuple[Client, float, float]]) -> Side:
    """The samples of ``clients``: each with its shift (s), and that shift's uncertainty (s)."""
    columns = [_Columns(*one) for one in clients]
    processes = [one for one in columns if one.has("server.")]
    # An agent that does not know the server's processes watches its host all the same.
    watchers = processes or [one for one in columns if one.agents]
    server = max(watchers, key=lambda one: one.many("server."), default=None)
    readers = [one for one in columns if one.has(_PAGE)]
    page = server if server in readers else max(readers, key=lambda one: one.many(_PAGE), default=None)
    findings: list[Finding] = []
    whole: dict[str, Series] = {}
    views = [one.of_its_own() for one in columns]
    if server is not None:
        same = [one for one in columns if one is not server and one.host == server.host]
        for other in same:
            findings += _memory_differs(server, other)
        whole |= _spliced(server, same, _is_of_server)
        alike = [one for one in columns if one is not server and one.network == server.network]
        whole |= _spliced(server, alike, _is_of_network)
        apart = _of_places([one for one in views if one.host != server.host], lambda one: one.host, _is_of_host)
        apart |= _of_places([one for one in views if one.network != server.network], lambda one: one.network, _is_of_network)
        whole |= {f"client.{name}": counts for name, counts in apart.items()}
    else:
        whole |= _of_places(views, lambda one: one.host, _is_of_host)
        whole |= _of_places(views, lambda one: one.network, _is_of_network)
    if page is not None:
        agreed = [page]
        for other in readers:
            if other is not page:
                wrong = _pages_differ(page, other)
                findings += wrong
                agreed += [] if wrong else [other]
        whole |= _pages(page, agreed)
    for family in _OWN:
        names = dict.fromkeys(name for one in columns for name in one.known if name.startswith(family))
        whole |= {name: _added([one.known[name] for one in columns if name in one.known]) for name in names}
    watched = page or server
    if watched is not None:
        # When the page was asked for and how long it took goes with the page.
        others = [one for one in columns if one is not watched]
        whole |= _spliced(watched, others, lambda name: name.startswith("probe."))
    for name in dict.fromkeys(name for one in columns for name in one.known if name.startswith(_EVENTS)):
        rows = sorted(row for one in columns if name in one.known for row in one.known[name].rows())
        whole[name] = Series([t_s for t_s, _ in rows], [value for _, value in rows])
    return Side(
        as_rows(whole),
        server.client if server is not None else None,
        page.client if page is not None else None,
        bool(processes),
        findings,
    )


def _is_of_network(name: str) -> bool:
    return name.startswith(_NETWORK)


def _is_of_host(name: str) -> bool:
    return name.startswith(_HOST) and not _is_of_network(name)


def _is_of_server(name: str) -> bool:
    """Of the server's processes, and of its host."""
    return name.startswith(("server.", "agent.")) or _is_of_host(name)


class _Columns:
    """The metrics of one client on the common clock; ``host`` and ``network``: which they are of."""

    def __init__(self, client: Client, shift_s: float, half_s: float) -> None:
        self.client, self.half_s = client, half_s
        self.host, self.network = client.watched, client.watched_network
        self.known: Mapping[str, Series] = _shifted(client.samples, shift_s)

    def of_its_own(self) -> _Columns:
        """What it read of its own host and network: an agent's session has names of its own for that."""
        if not self.agents:
            return self
        own = copy.copy(self)
        own.host, own.network = self.client.host, self.client.network
        own.known = {name.removeprefix("client."): one for name, one in self.known.items() if name.startswith("client.")}
        return own

    @property
    def agents(self) -> bool:
        """What is of the server's host was read by an agent there."""
        return isinstance(self.client.run.environment.get("agent"), dict)

    def has(self, family: str) -> bool:
        return any(name.startswith(family) for name in self.known)

    def many(self, family: str) -> int:
        return max((len(one) for name, one in self.known.items() if name.startswith(family)), default=0)


def _shifted(samples: Sequence[Sample], shift_s: float) -> dict[str, Series]:
    found = {}
    for name in metrics_of(samples):
        column = series(samples, name)
        found[name] = Series([t_s + shift_s for t_s in column.t_s], column.values)
    return found


def as_rows(columns: Mapping[str, Series]) -> Samples:
    """Series by metric as samples: all that is of one instant is one sample."""
    t_s = sorted({at for one in columns.values() for at in one.t_s})
    place = {at: number for number, at in enumerate(t_s)}
    return Samples(t_s, {name: ([place[at] for at in one.t_s], one.values) for name, one in columns.items() if len(one)})


def _spliced(first: _Columns, others: Sequence[_Columns], wanted: Wanted) -> dict[str, Series]:
    """The first's, and where it has none the others': before its first sample of what is ``wanted``, and after its last."""
    names = dict.fromkeys(name for one in (first, *others) for name in one.known if wanted(name))
    spans = [(one.known[name].t_s[0], one.known[name].t_s[-1]) for one in (first,) for name in names if name in one.known]
    low, high = min((span[0] for span in spans), default=math.inf), max((span[1] for span in spans), default=-math.inf)
    found = {}
    for name in names:
        known = first.known.get(name, Series())
        before, after = Series(), Series()
        for other in others:
            theirs = other.known.get(name)
            if theirs is not None and name in first.known:
                before = before if len(before) else theirs.between(-math.inf, math.nextafter(low, -math.inf))
                after = after if len(after) else theirs.between(math.nextafter(high, math.inf), math.inf)
        found[name] = Series(before.t_s + known.t_s + after.t_s, before.values + known.values + after.values)
    return {name: one for name, one in found.items() if len(one)}


def _of_places(columns: Sequence[_Columns], place: Callable[[_Columns], str], wanted: Wanted) -> dict[str, Series]:
    """What was read of hosts or networks, those of several added up; of one that several read, by who read most of it."""
    by_place: dict[str, list[_Columns]] = {}
    for one in columns:
        if any(map(wanted, one.known)):
            by_place.setdefault(place(one), []).append(one)
    each = []
    for readers in by_place.values():
        readers.sort(key=lambda one: sum(len(counts) for name, counts in one.known.items() if wanted(name)), reverse=True)
        each.append(_spliced(readers[0], readers[1:], wanted))
    names = dict.fromkeys(name for one in each for name in one)
    # What not all of them could read is of no sum.
    return {name: _added([one[name] for one in each]) for name in names if all(name in one for one in each)}


def _added(some: Sequence[Series]) -> Series:
    """Their sum, at the instants of the first of them, and of the next ones where those before have none."""
    import numpy as np

    instants: list[float] = []
    for one in some:
        low, high = (instants[0], instants[-1]) if instants else (math.inf, -math.inf)
        instants = sorted([*instants, *(t_s for t_s in one.t_s if t_s < low or t_s > high)])
    at = np.array(instants)
    # Beyond its ends each stays as it was: memory that was there before the first reading, time that was used after the last.
    total = sum(np.interp(at, one.t_s, one.values) for one in some)
    return Series(instants, np.asarray(total).tolist())


def _pages(page: _Columns, readers: Sequence[_Columns]) -> dict[str, Series]:
    """The server's page as if one poller had read it: of the others' polls and connections as many are counted as they made."""
    import numpy as np

    found = _spliced(page, [one for one in readers if one is not page], lambda name: name.startswith(_PAGE))
    for name in _POLLER:
        if name in found and all(name in one.known for one in readers):
            at = np.array(found[name].t_s)
            # Nothing before its first poll, and no more after its last.
            total = sum(np.interp(at, one.known[name].t_s, one.known[name].values, left=0.0) for one in readers)
            found[name] = Series(found[name].t_s, np.asarray(total).tolist())
    if "status.active" in found and len(readers) > 1:
        active = found["status.active"]
        spans = [(polls.t_s[0], polls.t_s[-1]) for one in readers if (polls := one.known.get("status.active")) is not None]
        values = []
        for t_s, count in zip(active.t_s, active.values, strict=True):
            values.append(count - max(0, sum(low <= t_s <= high for low, high in spans) - 1))
        found["status.active"] = Series(active.t_s, values)
    return found


def _pages_differ(page: _Columns, other: _Columns) -> list[Finding]:
    """A finding where two readings of one page cannot both be right: three running, or more than one in twenty."""
    import numpy as np

    for name in ("status.accepts", "status.requests", "status.active"):
        ours, theirs = page.known.get(name), other.known.get(name)
        if ours is None or theirs is None:
            continue
        if name != "status.active" and (began_anew(ours.values) or began_anew(theirs.values)):
            continue
        at, values = np.array(theirs.t_s), np.array(theirs.values)
        inside = (at >= ours.t_s[0]) & (at <= ours.t_s[-1])
        at, values = at[inside], values[inside]
        slack_s = _APART_S + min(page.half_s + other.half_s, _APART_S)
        around = np.array([np.interp(at + by, ours.t_s, ours.values) for by in np.linspace(-slack_s, slack_s, 9)])
        # The second poller comes and goes, and each asks once more.
        wrong = (values < around.min(axis=0) - 2) | (values > around.max(axis=0) + 2) if len(at) else np.zeros(0, dtype=bool)
        running = any(wrong[first : first + _PAGES_THAT_TELL].all() for first in range(len(wrong) - _PAGES_THAT_TELL + 1))
        if running or (len(wrong) >= 20 and wrong.mean() > 0.05):
            mine = np.interp(at, ours.t_s, ours.values)
            worst = int(np.argmax(np.where(wrong, np.abs(values - mine), -1.0)))
            evidence = (
                f"the status pages of {page.client.name} and {other.client.name} do not agree: "
                f"{name.removeprefix(_PAGE)} {mine[worst]:,.0f} and {values[worst]:,.0f} at one time; "
                f"that of {page.client.name} is taken"
            )
            remedy = "see that both read the page of the same server, and that their clocks are right"
            return [Finding("merge_pages_differ", "warning", evidence, remedy)]
    return []


def _memory_differs(server: _Columns, other: _Columns) -> list[Finding]:
    """A finding where two readings of the server's processes are of different ones."""
    import numpy as np

    for name in ("server.pss_bytes", "server.rss_bytes"):
        ours, theirs = server.known.get(name), other.known.get(name)
        if ours is None or theirs is None:
            continue
        at = np.array(theirs.t_s)
        inside = (at >= ours.t_s[0]) & (at <= ours.t_s[-1])
        mine, found = np.interp(at[inside], ours.t_s, ours.values), np.array(theirs.values)[inside]
        if not len(found) or np.median(np.abs(found - mine)) <= max(_LEAST_MEMORY, _SAME_MEMORY * float(np.median(mine))):
            return []
        evidence = (
            f"{server.client.name} and {other.client.name} read different processes as the server: "
            f"{np.median(mine) / 1e6:,.1f} and {np.median(found) / 1e6:,.1f} MB; those of {server.client.name} are taken"
        )
        return [Finding("merge_servers_differ", "warning", evidence, "name the same server with --server-pid in both")]
    return []
