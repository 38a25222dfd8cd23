"""Which processes hold the server's connections: those whose descriptors, threads or number rise
with the connections.

Who listens tells nothing of it: a server may hand its sockets to another process, or fork twice for
each connection; and behind a proxy another program holds as many. What rises in step with the
connections is presumed the server's. A server that does not rise by them does not hold them, and
what it takes of memory is no cost of a connection.
"""

from __future__ import annotations

import math

import msgspec

from asyncli.analysis.constants import FEWEST, HALF, NEARLY_ALL, PART
from asyncli.analysis.server_count import server_count
from asyncli.analysis.slope import OTHERS_INTO_HOLD_S
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series

# In the middle half of the ramp, a quarter from its ends, a program that follows the connections
# has as many, to a quarter.
_QUARTER = 0.25


class Holders(msgspec.Struct, frozen=True):
    """Who holds the server's connections. Programs are by name, other than the server's own
    processes.
    """

    #: Whether the server's processes rose by a tenth of the connections or more; None if unknown.
    server: bool | None = None
    #: Programs that hold connections at the server's ports, in the server's place or a part of
    #: them; and those that rose in step with the connections where the server holds none.
    in_place: tuple[str, ...] = ()
    #: Programs that rose in step with them beside the server, which holds them too: a proxy's
    #: backend.
    behind: tuple[str, ...] = ()

    @property
    def beside(self) -> tuple[str, ...]:
        """All of these programs."""
        return (*self.in_place, *self.behind)


def holders_of(run: Run) -> Holders:
    """Who holds the connections, by the whole run."""
    levels = _Levels.of(run)
    if levels is None:
        return Holders()
    server = _server_holds(run, levels)
    beside = _in_step(run, levels)
    programs = _of_family(run, metrics.BESIDE_HOLDERS)
    holding = tuple(name for name in programs if _holds(run, name, levels))
    if server is False:
        return Holders(server, in_place=tuple(sorted({*holding, *beside})))
    behind = tuple(name for name in beside if name not in holding)
    return Holders(server, in_place=holding, behind=behind if server else ())


def memory_of(run: Run, program: str) -> Series:
    """The bytes that a program's processes took since the first connect; empty if they may not be
    read.

    It is left out of samples in which it had hardly risen: 0 there.
    """
    risen = dict(run.series(f"{metrics.BESIDE_DESCRIPTORS}{program}").rows())
    taken = dict(run.series(f"{metrics.BESIDE_BYTES}{program}").rows())
    if not taken:
        return Series()
    read = [
        t_s
        for t_s in run.series(metrics.HOST_OTHER_PROCESSES).t_s
        if t_s in taken or t_s not in risen
    ]
    return Series(read, [taken.get(t_s, 0.0) for t_s in read])


def _server_holds(run: Run, levels: _Levels) -> bool | None:
    if not len(run.series(metrics.SERVER_DESCRIPTORS_OPEN)):
        return None
    for name in (metrics.SERVER_DESCRIPTORS_OPEN, metrics.SERVER_THREADS, metrics.SERVER_PROCESSES):
        count = run.series(name)
        before = count.last(until_s=levels.before_s)
        after = count.last(until_s=levels.after_s)
        if before is None or after is None:
            continue
        if after - before >= PART * levels.connections:
            return True
    return False


def _of_family(run: Run, family: str) -> list[str]:
    """The programs in a family of metrics."""
    return sorted(name.removeprefix(family) for name in run.metrics if name.startswith(family))


def _holds(run: Run, program: str, levels: _Levels) -> bool:
    """Whether its processes held connections at the server's ports while ours were held."""
    return (
        run.series(f"{metrics.BESIDE_HOLDERS}{program}").last(until_s=levels.after_s) or 0.0
    ) > 0


def _in_step(run: Run, levels: _Levels) -> tuple[str, ...]:
    """The programs beside the server that rose in step with the connections, by name."""
    family = metrics.BESIDE_DESCRIPTORS
    names = _of_family(run, family)
    rises = {
        name: [_rise(run, f"{kind}{name}") for kind in (family, metrics.BESIDE_PROCESSES)]
        for name in names
    }
    return tuple(name for name in names if any(_is_in_step(rise, levels) for rise in rises[name]))


class _Levels(msgspec.Struct, frozen=True):
    """The server's connections over time, and their rise between two instants: before the first
    connect, and all held.
    """

    count: Series
    before_s: float
    after_s: float
    connections: float

    @classmethod
    def of(cls, run: Run) -> _Levels | None:
        """None if the run held fewer connections than any program opens files."""
        held = run.held
        start = run.first_connect_s
        highest = max(held.values)
        if highest < 2 * FEWEST or not math.isfinite(start):
            return None
        nearly_all = next(t_s for t_s, number in held.rows() if number >= NEARLY_ALL * highest)
        # What the drain closes is not lost.
        in_hold = held.between(nearly_all, run.stop_s).rows()
        lost = next((t_s for t_s, number in in_hold if number < NEARLY_ALL * highest), math.inf)
        # The probe may be slow to come: then its first reading with nearly all.
        read = run.series(metrics.HOST_OTHER_PROCESSES).between(nearly_all, run.stop_s).t_s[:1]
        after = min(max([nearly_all + OTHERS_INTO_HOLD_S, *read]), lost - 1.0, run.stop_s)
        counted = server_count(run)
        count = counted if len(counted) else held
        rise = (count.at(after) or 0.0) - (count.at(start) or 0.0)
        # Others may have closed as many meanwhile: then nothing rises with ours.
        if rise < HALF * highest:
            return None
        return cls(count, start, after, rise)


def _rise(run: Run, name: str) -> Series:
    """A metric of a program over time: it is left out of samples in which it had hardly risen."""
    values = dict(run.series(name).rows())
    read = run.series(metrics.HOST_OTHER_PROCESSES).t_s
    return Series(list(read), [values.get(t_s, 0.0) for t_s in read])


def _is_in_step(rise: Series, levels: _Levels) -> bool:
    """Whether it rose by a whole number for each connection, and by about as many for each of half
    of them.
    """
    part = rise.between(-math.inf, levels.after_s)
    if not part.values:
        return False
    last_s = part.t_s[-1]
    last = part.values[-1]
    start = levels.count.at(levels.before_s) or 0.0
    connections = (levels.count.at(last_s) or 0.0) - start
    if connections < HALF * levels.connections:
        return False
    by_each = last / connections
    if round(by_each) < 1 or abs(by_each - round(by_each)) > PART * round(by_each):
        return False
    for t_s, value in part.rows():
        then = (levels.count.at(t_s) or 0.0) - start
        in_the_middle = _QUARTER * connections <= then <= (1 - _QUARTER) * connections
        if in_the_middle and abs(value / then - by_each) > _QUARTER * by_each:
            return False
    return True
