"""The server's limits, as one client read them against its own plan, held against the connections of all. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from asyncli.analysis.forecast import workers_of
from asyncli.merge.parts import Client
from asyncli.preflight.nginx import COMFORTABLE, REUSE_BELOW, descriptors_needed
from asyncli.records import Check

# What ends a connection by its age, its idle time or its requests is the same for all of them.
_OF_EACH = ("nginx_keepalive_timeout", "nginx_client_header_timeout", "nginx_keepalive_requests", "nginx_keepalive_time")
_SLOTS, _DESCRIPTORS = "nginx_worker_connections", "nginx_nofile"


def of_the_server(clients: Sequence[Client], connections: int) -> list[Check]:
    """Those that the first of ``clients`` read that could read any; ``connections``: of all of them."""
    for one in clients:
        known = {check.code: check for check in one.run.checks if check.have is not None}
        if found := [known[code] for code in (*_OF_EACH, _SLOTS, _DESCRIPTORS) if code in known]:
            return [_for_all(check, one.run.plan.connections, connections) for check in found]
    return []


def _for_all(check: Check, before: int, connections: int) -> Check:
    have = check.have or 0.0
    if check.code == _SLOTS:
        need, least, room = math.ceil(COMFORTABLE * connections), connections, have * (1 - REUSE_BELOW)
    elif check.code == _DESCRIPTORS and check.need is not None:
        workers = workers_of(check.need, before)
        need, least, room = descriptors_needed(connections, workers), math.ceil(connections / workers), have
    else:
        return check
    verdict = "short" if least > room else "warn" if need > have else "ok"
    # A remedy was for one client's share.
    return msgspec.structs.replace(check, verdict=verdict, need=need, remedy="")
