"""What other programs of the sampled host took of its memory, and how much of that may belong to
the connections.

The law: what they take by themselves belongs to no connection, and whatever else they take may. By
themselves they take what they take at a steady pace while no connection is added: before the first
connect, and in the hold; and in the ramp, what they would take at the lower pace of both. Nobody
can tell the rest apart: a daemon of the server may take memory for connections of which it holds no
socket, and a stranger may begin in the ramp. So the cost of the host reaches from the host without
all that other programs took to the host with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncli.analysis.holders import Holders
from asyncli.analysis.regression import FEWEST_POINTS, regress
from asyncli.analysis.server_memory import behind_server, unmapped_shared, with_files_at_rest
from asyncli.analysis.slope import MOST_BINS, median_point, minus
from asyncli.model import metrics
from asyncli.model.run import Run
from asyncli.model.samples import Series, parts


def memory_of_others(run: Run, holders: Holders) -> Series:
    """Memory of processes on the sampled host over time, without those of asyncli, of the server
    and of the ``holders``.
    """
    of_asyncli = [metrics.AGENT_USS_BYTES]
    if run.sides.generator:
        of_asyncli = [metrics.GENERATOR_USS_BYTES, metrics.SESSION_USS_BYTES]
    known = [run.series(name) for name in of_asyncli]
    if run.sides.server:
        known += [
            with_files_at_rest(run, holders)[0],
            behind_server(run, holders),
            unmapped_shared(run),
        ]
    return minus(run.series(metrics.HOST_PROCESSES_BYTES), [memory for memory in known if memory])


def taken_by_themselves(run: Run, others: Series, at_s: Sequence[float]) -> Series:
    """How many bytes ``others`` took by themselves since the first connect, at these instants;
    below zero if they freed them.
    """
    hold = run.hold
    if hold is None or not others:
        return Series(list(at_s), [0.0] * len(at_s))
    start_s, ramp_end_s = run.first_connect_s, hold.start_s
    before = _sure_pace(others.between(-math.inf, start_s))
    # What a server takes some seconds after its accepts has come by the later half.
    in_hold = _sure_pace(others.between((hold.start_s + hold.end_s) / 2, hold.end_s))
    in_ramp = _common_pace(before, in_hold)
    taken = []
    for t_s in at_s:
        baseline_s = min(t_s, start_s) - start_s
        ramp_s = min(max(t_s, start_s), ramp_end_s) - start_s
        hold_s = max(t_s, ramp_end_s) - ramp_end_s
        taken.append(before * baseline_s + in_ramp * ramp_s + in_hold * hold_s)
    return Series(list(at_s), taken)


def _sure_pace(rest: Series) -> float:
    """Bytes a second of a metric that moves steadily: the end of its 95 % interval closest to zero;
    0 if that holds zero.
    """
    if len(rest) < FEWEST_POINTS or rest.t_s[-1] <= rest.t_s[0]:
        return 0.0
    points = []
    for start_s, end_s in parts(
        rest.t_s[0], rest.t_s[-1], (rest.t_s[-1] - rest.t_s[0]) / MOST_BINS, len(rest)
    ):
        rows = [(t_s, t_s, value) for t_s, value in rest.between(start_s, end_s).rows()]
        if rows:
            points.append(median_point(rows))
    line = regress(points)
    if line is None:
        return 0.0
    low, high = line.slope - line.half, line.slope + line.half
    return max(0.0, low) + min(0.0, high)


def _common_pace(before: float, after: float) -> float:
    """The pace closer to zero of two; 0 if their signs differ."""
    if before * after <= 0:
        return 0.0
    return math.copysign(min(abs(before), abs(after)), after)
