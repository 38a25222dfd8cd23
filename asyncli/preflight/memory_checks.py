"""Checks whether the memory suffices, by a prediction. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from asyncli.engine.spread import Spread
from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.units import format_bytes
from asyncli.preflight.demand import ends
from asyncli.preflight.host_limits import Limits
from asyncli.preflight.limit import Verdict, limit

# Bytes of an idle connection, measured on Linux 6.18 x86-64 with nginx 1.22 and a million
# connections. An end: TCP 2,304, sock_inode_cache 832, filp 192, dentry 192, and epoll's items. A
# Unix socket's end: UNIX-STREAM 1,152 in place of TCP.
KERNEL_BYTES_PER_END = 4_100
KERNEL_BYTES_PER_UNIX_END = 2_600
SERVER_BYTES = 1_300
GENERATOR_BYTES = 160
STREAM_BYTES = 10_000  # of a held HTTP/2 stream: experiment atlas
# A worker before its first connection, and the session with its run file.
WORKER_BYTES = 1_500_000
SESSION_BYTES = 60_000_000
# Above this share of what is available the prediction may err.
_COMFORTABLE = 0.8


def predicted_bytes(plan: Plan, spread: Spread) -> int:
    """The predicted memory of the run on this host, in bytes: see the constants."""
    of_connection = _kernel_bytes_per_end(plan) * ends(spread) + GENERATOR_BYTES
    if spread.local:
        of_connection += _server_bytes(plan)
    return plan.connections * of_connection + spread.workers * WORKER_BYTES + SESSION_BYTES


def _kernel_bytes_per_end(plan: Plan) -> int:
    return KERNEL_BYTES_PER_END if plan.has_ports else KERNEL_BYTES_PER_UNIX_END


def _server_bytes(plan: Plan) -> int:
    return SERVER_BYTES + plan.streams * STREAM_BYTES


def host_memory(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    subject = "memory available on this host, without the server"
    if spread.local:
        subject = "memory available, for a server as light as nginx"
    need = predicted_bytes(plan, spread)
    detail = _prediction_here(plan, spread)
    yield _memory_check(plan, "memory", subject, limits.memory_available, need, detail)


def server_memory(plan: Plan, limits: Limits) -> Iterator[Check]:
    """The memory of a remote server's host."""
    kernel = _kernel_bytes_per_end(plan)
    server = _server_bytes(plan)
    need = plan.connections * (kernel + server)
    detail = _prediction(f"{kernel:,} B of kernel + {server:,} B of nginx")
    yield _memory_check(plan, "memory", "memory available", limits.memory_available, need, detail)


def cgroup_memory(plan: Plan, spread: Spread, limits: Limits) -> Iterator[Check]:
    if limits.cgroup_memory_limit is None or limits.cgroup_memory_used is None:
        # Without a limit or a memory controller there is nothing to exceed.
        return
    have = max(0, limits.cgroup_memory_limit - limits.cgroup_memory_used)
    need = predicted_bytes(plan, spread)
    limit = format_bytes(limits.cgroup_memory_limit)
    used = format_bytes(limits.cgroup_memory_used)
    detail = (
        f"limit {limit}, {used} in use; a server outside this cgroup does not count; "
        f"{_prediction_here(plan, spread)}"
    )
    subject = "memory left in the cgroup"
    check = _memory_check(plan, "cgroup_memory", subject, have, need, detail)
    if check.verdict == "ok":
        yield check
        return
    verdict = check.verdict
    if spread.local and need / 2 <= have:
        # ``need`` includes the server's half, and the server may be in another cgroup.
        verdict = "warn"
    missing = format_bytes(need - have * _COMFORTABLE)
    remedy = f"raise the container's memory limit by {missing}; {check.remedy}"
    yield msgspec.structs.replace(check, verdict=verdict, remedy=remedy)


def _memory_check(
    plan: Plan, code: str, subject: str, have: int | None, need: int, detail: str
) -> Check:
    if have is None:
        return limit(code, subject, "bytes", None, need, source="MemAvailable of /proc/meminfo")
    if need <= have * _COMFORTABLE:
        return Check(code, subject, "ok", have, need, "bytes", detail)
    verdict: Verdict = "short" if need > have else "warn"
    fits = max(1, int(plan.connections * have * _COMFORTABLE / need))
    remedy = f"-c {fits}, or free some memory"
    return Check(code, subject, verdict, have, need, "bytes", detail, remedy)


def _prediction_here(plan: Plan, spread: Spread) -> str:
    kernel = f"{_kernel_bytes_per_end(plan):,} B of kernel"
    asyncli = f"{GENERATOR_BYTES} B of asyncli"
    if spread.local:
        return _prediction(f"2 x {kernel} + {_server_bytes(plan):,} B of nginx + {asyncli}")
    return _prediction(f"{kernel} + {asyncli}")


def _prediction(parts: str) -> str:
    return (
        f"predicted per connection: {parts} (Linux 6.18, nginx 1.22); "
        "another server may need far more"
    )
