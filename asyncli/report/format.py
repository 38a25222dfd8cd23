"""Numbers and terms as text; unknown is a dash."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, UnsetType

from asyncli.analysis.cost_parts import is_measured, known_of_heap
from asyncli.analysis.heap_cost import HeapCost
from asyncli.analysis.slope import Cost
from asyncli.findings.cost import SURE
from asyncli.model.text import oneline
from asyncli.model.units import (
    WHOLE_BYTES,
    format_bytes,
    format_count,
    format_each,
    format_many,
    known_digits,
)

if TYPE_CHECKING:
    from asyncli.analysis.ceiling import Ceiling
    from asyncli.analysis.cost_parts import Costs
    from asyncli.analysis.drift import MetricName
    from asyncli.model.topology import Sides
    from asyncli.report.summary import CostPart

#: The costs of a run in the order of the report.
COSTS = (
    "server_user",
    "behind",
    "kernel",
    "kernel_queued",
    "generator_user",
    "residual",
    "host_total",
)
#: The name of each ceiling in words.
CEILINGS = {
    "memory": "memory of this host, both ends on it",
    "server_memory": "memory of a server like this host, alone",
    "worker_connections": "nginx's connection slots (worker_connections)",
    "maxconn": "the sessions of HAProxy's frontend (maxconn)",
    "global_maxconn": "the connections of all HAProxy's frontends (global maxconn)",
    "server_maxconn": "the sessions of the servers behind HAProxy (maxconn of server)",
    "scoreboard": "Apache's processes or threads (MaxRequestWorkers)",
    "limit_conn": "the connections that nginx's limit_conn allows",
    "max_conns": "connections to nginx's backends (max_conns)",
    "proxy_ports": "source ports of the server to its backends (ip_local_port_range)",
    "group_tasks": "threads in the server's control group (pids.max)",
    "user_tasks": "threads of the server's user (RLIMIT_NPROC)",
    "host_tasks": "threads on the server's host (kernel.threads-max, kernel.pid_max)",
    "address_space": "the address space of a process of the server (RLIMIT_AS)",
    "data": "the private writable memory of a process of the server (RLIMIT_DATA)",
    "descriptors_beside": (
        "descriptors of a program that holds the server's connections or is behind it"
    ),
    "committed": "memory that the server's host grants, used or not (vm.overcommit_memory 2)",
    "mappings": "memory maps of a process of the server (vm.max_map_count)",
    "descriptors": "the server's descriptors",
    "server_group": "memory of the server's control group",
    "server_heap": "the greatest heap of the server's runtime (beyond it an out-of-memory error)",
    "old_generation": (
        "the old generation of the server's JVM (beyond it each collection is a full one)"
    ),
    "go_limit": "Go's memory limit (GOMEMLIMIT; beyond it Go collects all the time)",
    "earlier_memory": "memory that the server has in advance",
    "ports": "source ports",
    "generator": "memory for asyncli itself",
    "file_max": "open files of the whole host (fs.file-max)",
    "epoll_watches": "epoll watches (fs.epoll.max_user_watches)",
    "conntrack": "tracked connections (nf_conntrack_max)",
    "server_host": "memory of the server's host",
    "far_file_max": "open files of the server's host (fs.file-max)",
    "far_epoll_watches": "epoll watches there (fs.epoll.max_user_watches)",
    "far_conntrack": "tracked connections there (nf_conntrack_max)",
}


class CostRow(NamedTuple):
    """A line of the cost table, in bytes. ``cost`` is per end of a connection if there are several
    ``ends``. ``hidden``: it is not measured, because of noise or other programs.
    ``has_level``: its levels have all of the memory that its label names.
    """

    name: str
    label: str
    cost: Cost | None
    ends: int
    hidden: bool
    has_level: bool = True

    @property
    def fixed(self) -> str:
        """The fixed part; a dash if the slope is too uncertain: what a slope leaves of a level is
        then a guess.
        """
        if self.cost is None or self.is_wide:
            return "-"
        return self.at(0)

    @property
    def is_wide(self) -> bool:
        """Whether the interval says more than its middle."""
        cost = self.cost
        return cost is not None and cost.half_width > SURE * abs(cost.bytes_per_connection)

    def at(self, held: int) -> str:
        """The total with ``held`` connections, per end: ``"2 × 24.0 MB"``; a dash if hidden, or
        below zero, as no memory is. The residual, a difference of memories, may be.
        """
        if self.cost is None or self.hidden or not self.has_level:
            return "-"
        level = self.cost.fixed_bytes + held * self.cost.bytes_per_connection
        if level < 0 and self.name != "residual":
            return "-"
        if self.ends > 1:
            return f"{self.ends} × {format_bytes(level)}"
        return format_bytes(level)


def with_streams(streams: float | UnsetType) -> str:
    """What follows "connection" in a text if each holds streams, whose cost is included: `` with
    its 100 streams``.
    """
    if streams is UNSET:
        return ""
    if streams == round(streams):
        return f" with its {format_many(streams, 'stream')}"
    return f" with its {format_many(streams, 'stream')} (mean)"


def has_slope(rows: Sequence[CostRow]) -> bool:
    """Whether any of the costs is a slope: all others are differences of two levels, which include
    the first use.
    """
    return any(row.cost is not None and not row.cost.of_levels for row in rows)


def caption(rows: Sequence[CostRow], streams: str) -> str:
    """``streams``: :func:`with_streams`."""
    if has_slope(rows):
        return f"Memory that one more connection{streams} costs"
    return f"Memory that a connection{streams} takes, first use included"


def memory_labels(server: str, host: str, kernel: str = "kernel") -> dict[MetricName, str]:
    """The names of the memories over time, the whole host first."""
    return {
        "host_total": f"{host} in all",
        "server_user": oneline(server),
        "live_heap": f"{oneline(server)}, live heap",
        "kernel": kernel,
        "generator_user": "asyncli",
    }


#: Costs of a heap in the table of costs; they are parts of the server's user memory.
_OF_HEAP = {"live": "live heap", "stacks": "stacks", "at_goal": "at its goal"}


def cost_rows(
    costs: Costs | CostPart, server: str, where: Sides, *, heap_fills: bool = False
) -> list[CostRow]:
    """The lines of the cost table, unknown costs included. ``heap_fills``: the server's heap is
    collected, and fills between collections.
    """
    labels = {"server_user": f"{server}, user memory"}
    if heap_fills:
        labels["server_user"] = f"{server}, heap filling"
    if costs.with_heap == "server_user":
        labels |= _labels_of_heap(costs, server)
    if costs.behind_programs:
        programs = oneline(", ".join(costs.behind_programs))
        labels["behind"] = f"{programs}, behind it"
        if costs.with_heap == "behind":
            labels |= _labels_of_heap(costs, programs)
    labels["kernel"] = f"kernel, {_ends(costs.ends, where)}"
    labels["generator_user"] = "asyncli, user memory"
    labels["residual"] = "left over"
    labels["host_total"] = f"{where.host} in all"
    rows = []
    for name, label in labels.items():
        ends = costs.ends if name == "kernel" else 1
        is_hidden = not is_measured(costs, name)
        cost = costs.cost_of(name)
        # Its levels are compared with what a host has.
        has_level = name != "at_goal" or (isinstance(cost, HeapCost) and cost.is_whole)
        rows.append(CostRow(name, label, cost, ends, is_hidden, has_level))
    return rows


def _labels_of_heap(costs: Costs | CostPart, program: str) -> dict[str, str]:
    return {name: f"{program}, {_OF_HEAP[name]}" for name in known_of_heap(costs)}


def _ends(ends: int, where: Sides) -> str:
    """The ends of a connection whose memory the kernel's is."""
    if ends > 1:
        return f"each of {ends} ends"
    if where.far is None:
        return "this end"
    return "its end"


def shown_r2(r2: float) -> str:
    """R² to three digits, with a fourth beyond 0.999."""
    if r2 == 1.0:
        return "1"
    text = f"{r2:.3f}" if r2 < 0.9995 else f"{r2:.4f}"
    if text.startswith("1"):
        return "> 0.9999"
    return text


def short_bytes(value: float) -> str:
    """Bytes of one connection without unit, tenths below ten: ``"10,888"``, ``"9.6"``."""
    if abs(value) < 0.05:
        return "0"
    if abs(value) < 9.95:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def minus(text: str) -> str:
    return text.replace("-", "−")


def capitalised(text: str, server: str) -> str:
    """``text`` as a sentence. The name of a server, or asyncli's, at its beginning stays:
    ``nginx``, ``python3.11``.
    """
    if text.startswith(("asyncli", server)) and not text.startswith("the "):
        return text
    return f"{text[:1].upper()}{text[1:]}"


def or_bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)


def ceiling(name: str) -> str:
    """A ceiling's name in words."""
    return CEILINGS.get(name, name.replace("_", " "))


def count_or_unknown(count: int | None) -> str:
    """``"12,345"``; a count without records is unknown."""
    return "unknown" if count is None else format_count(count)


def or_dash(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def milliseconds(value: float | None) -> str:
    """``"0.42 ms"``, ``"12 ms"``, ``"1.80 s"``."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{digits(value)} ms"


def digits(value: float) -> str:
    """``"0.42"``, ``"12.3"``, ``"1,234"``."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return f"{value:,.2f}"


def cores(share: float | None) -> str:
    """CPU use in cores, as top(1) counts: 250 % is 2.5 cores."""
    if share is None:
        return "-"
    if share < 1:
        return f"{share * 100:.0f} % of a core"
    return f"{share:.1f} cores"


def plus_minus(value: float, half: float) -> str:
    """Bytes per connection with the error of either side, to the digits that are known: ``"528 B ±
    1"``, ``"16,000 B ± 1,400"``, ``"2.0 MB ± 3,700 B"``.
    """
    known, known_half = known_digits(value, half)
    if abs(known) >= WHOLE_BYTES:
        # Of two digits none is a tenth from ten on.
        shown_half = re.sub(r"(?<=\d\d)\.0 ", " ", format_bytes(known_half))
        return f"{format_each(known)} ± {shown_half}"
    if half >= 1:
        return f"{format_each(known)} ± {known_half:,.0f}"
    return f"{format_each(value)} ± {_tenths(half)}"


def _tenths(half: float) -> str:
    """Half of an interval below a byte, to a tenth; never zero, because no number is known
    exactly.
    """
    return f"{max(half, 0.1):.1f}"


# From here on, one error for both sides says less of one of them than is known.
_LOPSIDED = 1.4


def is_lopsided(value: float, ci95: tuple[float, float]) -> bool:
    """Whether a value is far from the middle of its interval: then the interval stands for it, and
    no error of either side.
    """
    below = value - ci95[0]
    above = ci95[1] - value
    return max(below, above) > _LOPSIDED * min(below, above)


def error_of(value: float, ci95: tuple[float, float]) -> float:
    """The error of either side that cuts nothing of the interval: that of its farther side."""
    return max(value - ci95[0], ci95[1] - value)


def with_error(cost: Cost, times: int = 0) -> str:
    """A cost with its error: ``"528 B ± 1"``; with a wide interval, or one that the value is not in
    the middle of, ``"between 552 and 21,957 B"``;
    possibly zero ``"at most 564 B"``, or of two levels, which miss reused memory, ``"unknown
    (-2,437 to 10,440 B)"``; below a byte ``"0 B ± 0.1"``.

    ``times``: how often it is in a total to which the printed parts are to add up: ``"at most 136 B
    (54 B of the total)"``.
    """
    low, high = cost.ci95
    is_wide = cost.half_width > SURE * cost.bytes_per_connection
    if low > 0 and not is_wide and not is_lopsided(cost.bytes_per_connection, cost.ci95):
        value = cost.bytes_per_connection
        return plus_minus(value, error_of(value, cost.ci95))
    furthest = max(abs(low), abs(high))
    if furthest < 1:
        return f"0 B ± {_tenths(furthest)}"
    share = _share_of_total(cost, times)
    if low > 0:
        return f"between {interval_bytes(cost, ' and ')}{share}"
    if is_unknown(cost):
        return f"unknown ({interval_bytes(cost)}){share}"
    return f"at most {format_each(high)}{share}"


def _share_of_total(cost: Cost, times: int) -> str:
    """What the cost adds to a total that has it so many ``times``; "" for none."""
    share = format_each(cost.bytes_per_connection)
    if times == 0:
        return ""
    if times == 1:
        return f" ({share} of the total)"
    return f" ({times} × {share} of the total)"


def is_unknown(cost: Cost) -> bool:
    """Whether not even a bound is known: the interval of a slope lies below zero, or that of two
    levels reaches it.
    """
    low, high = cost.ci95
    return max(abs(low), abs(high)) >= 1 and (high < 0 or (low <= 0 and cost.of_levels))


def interval_bytes(cost: Cost, to: str = " to ") -> str:
    """``"-2,437 to 10,440 B"``, ``"-22.0 kB to 128 kB"``."""
    low, high = cost.ci95
    if max(abs(low), abs(high)) >= WHOLE_BYTES:
        return f"{format_each(low)}{to}{format_each(high)}"
    return f"{interval(low, high).replace(' to ', to)} B"


def interval(low: float, high: float) -> str:
    """Whole bytes, or tenths of a narrow interval."""
    decimals = 0 if high - low >= 10 else 1
    return f"{_end(low, decimals)} to {_end(high, decimals)}"


def _end(value: float, decimals: int) -> str:
    """The end of an interval; zero has no sign."""
    text = f"{value:,.{decimals}f}"
    if not text.strip("-0."):
        return text.lstrip("-")
    return text


def about(limit: Ceiling) -> str:
    """A ceiling's number in its significant digits; "at least 300" or a dash if it is unknown."""
    if limit.connections is None and not isinstance(limit.at_least, UnsetType):
        return f"at least {format_count(limit.rounded(limit.at_least))}"
    if limit.connections is None:
        return "-"
    return format_count(limit.rounded(limit.connections))


def about_to(limit: Ceiling) -> str:
    """A ceiling's interval: ``"4,250,000 to 4,950,000"``; "" without one."""
    if limit.ci95 is None:
        return ""
    low, high = limit.ci95
    return f"{format_count(limit.rounded(low))} to {format_count(limit.rounded(high))}"


def utf8(name: str) -> str:
    """A file's name with bytes that are not UTF-8 replaced."""
    return os.fsencode(name).decode("utf-8", "replace")
