"""Finds this host's server programs, and sizes an nginx for a number of connections."""

from __future__ import annotations

import itertools
import math
import os
import re
import resource
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from asyncli.model.errors import HostError
from asyncli.model.trust import ask_program

# Where distributions and manual builds install servers.
_PLACES = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/nginx/sbin",
    "/usr/local/apache2/bin",
    "/usr/bin",
    "/usr/local/bin",
    "/opt/nginx/sbin",
    "/usr/local/go/bin",
)
# nginx's NGX_MAX_PROCESSES is 1,024, with its helpers.
_MOST_WORKERS = 1_000
_DEFAULT_NR_OPEN = 1_048_576


class NginxBinary(NamedTuple):
    """An nginx program; ``version_text``: as ``nginx/1.22.1``; ``without``: modules it was built
    without; ``modules``: the folder of dynamic modules.
    """

    path: str
    version: tuple[int, ...]
    version_text: str
    stub_status: bool
    without: frozenset[str]
    modules: str = ""


class Sizes(NamedTuple):
    """An nginx's size: processes, and connection slots and descriptors of each."""

    workers: int
    slots: int
    nofile: int


def parse_version(text: str) -> NginxBinary | None:
    """The facts in the output of ``nginx -V``, with an empty path; None for another program."""
    match = re.search(r"nginx version:\s*([\w.-]+)/([\d.]+)", text)
    if match is None:
        return None
    modules = re.search(r"--modules-path=(\S+)", text)
    return NginxBinary(
        path="",
        version=tuple(int(part) for part in match[2].split(".") if part),
        version_text=f"{match[1]}/{match[2]}",
        stub_status="--with-http_stub_status_module" in text,
        without=frozenset(re.findall(r"--without-(\w+)", text)),
        modules="" if modules is None else modules[1],
    )


def programs(flag: str, *names: str) -> Iterator[tuple[str, str]]:
    """The absolute path of each program with one of ``names``, and its output for ``flag`` (a few
    ms each).
    """
    path_folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # What pip installs beside asyncli is there, also if no environment is activated.
    pip_folder = str(Path(sys.executable).parent)
    places = dict.fromkeys([*path_folders, *_PLACES, pip_folder])
    for name, place in itertools.product(names, filter(None, places)):
        path = shutil.which(name, path=place)
        if path is not None:
            yield os.path.abspath(path), ask_program(path, flag)


def find_nginx() -> NginxBinary | None:
    """This host's nginx, preferably with stub_status, or None."""
    fallback = None
    for path, text in programs("-V", "nginx"):
        binary = parse_version(text)
        if binary is None:
            continue
        binary = binary._replace(path=path)
        if binary.stub_status:
            return binary
        fallback = fallback or binary
    return fallback


def descriptor_limit() -> int:
    """How many descriptors a process may have: the hard limit, or fs.nr_open if that is
    infinite.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        return hard
    return number_in("/proc/sys/fs/nr_open") or _DEFAULT_NR_OPEN


def number_in(path: str) -> int | None:
    """The number in a kernel file; None if it cannot be read."""
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def slots_needed(connections: int, workers: int) -> int:
    """The worker_connections that a worker's share of ``connections`` needs.

    reuseport distributes by a hash, so the share is binomial: fewer than one worker in a billion
    gets six standard deviations above the mean. A tenth more keeps over a sixteenth of the slots
    free (with less nginx closes idle clients); at least 1.15 x the mean. 16 are for listeners, the
    channel and pollers.
    """
    mean = connections / workers
    return max(math.ceil(1.1 * (mean + 6 * math.sqrt(mean))), math.ceil(1.15 * mean)) + 16


def size(
    connections: int, *, nofile: int, cpus: int, workers: int | None = None, of: str = "nginx"
) -> Sizes:
    """The smallest number of workers whose descriptors suffice, and their slots. Raises
    :class:`HostError` if none does.
    """
    counts: Iterable[int] = range(max(1, cpus), _MOST_WORKERS + 1)
    if workers:
        counts = (workers,)
    for count in counts:
        slots = slots_needed(connections, count)
        # Each worker inherits the listeners of all (reuseport: one per worker) and a channel to
        # each other worker.
        if slots + 2 * count + 32 <= nofile:
            return Sizes(count, slots, nofile)
    remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE=) or ask for fewer"
    if workers:
        remedy = "leave --workers out"
    size = f"{workers or _MOST_WORKERS:,} workers of {nofile:,} descriptors each"
    raise HostError(f"{of} cannot hold {connections:,} connections in {size}; {remedy}")
