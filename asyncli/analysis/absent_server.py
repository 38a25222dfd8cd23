"""Whether the processes that were taken for the server had a part in the run."""

from __future__ import annotations

import itertools

from asyncli.findings.server import server_not_listening, server_took_no_part
from asyncli.model.metrics import SERVER_CPU_S, SERVER_DESCRIPTORS, SERVER_PROCESSES
from asyncli.model.records import Finding
from asyncli.model.run import Run


def absent_server(run: Run) -> Finding | None:
    """Why the server's processes are others than those that answered; None if they may have
    answered, or nothing is known.

    They used less CPU than the system calls of the answers take, which is exact, and no process nor
    any descriptor of the fullest was added for the connections. Both are needed: a kernel's module
    may serve with no CPU of the process that holds the connections, and a server behind a proxy may
    hold none.
    """
    start = run.first_connect_s
    stop = run.stop_s
    cpu = run.series(SERVER_CPU_S).between(start, stop)
    # A restarted server's counter falls.
    used_s = sum(max(0.0, now - before) for before, now in itertools.pairwise(cpu.values))
    answered = 0
    if len(cpu):
        answered = sum(tick.answered for _, tick in run.ticks_between(cpu.t_s[0], cpu.t_s[-1]))
    # To receive and to send are two system calls, of some microseconds.
    if used_s >= answered * 1e-6:
        return None
    for name in (SERVER_DESCRIPTORS, SERVER_PROCESSES):
        count = run.series(name)
        before = count.last(until_s=start)
        if before is not None and max(count.between(start, stop).values, default=0.0) > before:
            return None
    for finding in run.findings:
        if finding.code == server_not_listening.code:
            # It names the listener as well.
            return finding
    server = run.environment.get("server")
    pid = server.get("pid") if isinstance(server, dict) else None
    return server_took_no_part(pid, run.plan.names_server, answered, used_s)
