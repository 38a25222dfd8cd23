"""The registry of metrics in samples: each one's name, kind and meaning.

A name begins with its side and ends with its unit: ``_bytes``, ``_s`` (seconds), nothing for a
count. A family's name ends with a dot, and its members are named by the kernel or by us. To add a
metric: a line here, and the probe that reads it.
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """``exposed``: its name for Prometheus, without our prefix; ``label``: the label that
    distinguishes a family's members there.
    """

    kind: Literal["gauge", "counter"]
    about: str
    exposed: str
    label: str = ""


METRICS: dict[str, Metric] = {}


def _gauge(name: str, about: str) -> str:
    METRICS[name] = Metric("gauge", about, _exposed(name))
    return name


def _counter(name: str, about: str) -> str:
    """Register a metric that never falls while its source runs."""
    METRICS[name] = Metric("counter", about, _exposed(name) + "_total")
    return name


def _family(name: str, about: str, exposed: str = "", label: str = "") -> str:
    kind: Literal["gauge", "counter"] = "counter" if exposed.endswith("_total") else "gauge"
    METRICS[name] = Metric(kind, about, exposed, label)
    return name


def _exposed(name: str) -> str:
    return re.sub(r"_s\Z", "_seconds", name.replace(".", "_"))


# An int numbers descriptors, processes and threads, and no host has the memory for more sockets:
# 4 kB each make 8.8 TB.
_MOST_OPEN = 2.0**31
# Physical addresses have at most 52 bits (x86-64, arm64).
_MOST_BYTES = 2.0**52
# Floats and JSON count exactly to here; at a million a second that takes 285 years.
_MOST_COUNTED = 2.0**53


def greatest(name: str) -> float:
    """The greatest value that a metric can physically have; infinite for limits, which may be none,
    and for unknown ones.
    """
    known = METRICS.get(name) or METRICS.get(name.removeprefix(CLIENT))
    if known is None or "limit" in name:
        return math.inf
    if known.kind == "counter":
        return _MOST_COUNTED
    if name.endswith("_bytes"):
        return _MOST_BYTES
    if name.endswith("_s"):
        return math.inf
    return _MOST_OPEN


def least(name: str) -> float:
    """The least value that a metric can have: zero, but for by how much something rose."""
    if name.startswith(BESIDE_BYTES):
        return -_MOST_BYTES
    return 0.0


def meaning(name: str) -> str:
    """The meaning of a metric, or of its family (for ``tcp.ListenDrops``); "" for an
    unknown one.
    """
    metric = METRICS.get(name) or METRICS.get(family_of(name))
    if metric is None:
        return ""
    return metric.about


def family_of(name: str) -> str:
    """The family of a metric; "": none."""
    for family in FAMILIES:
        if name.startswith(family):
            return family
    return ""


STATUS_ACTIVE = _gauge(
    "status.active", "open connections by the server's count, our poller's included"
)
STATUS_ACCEPTS = _counter("status.accepts", "connections the server has accepted since its start")
STATUS_HANDLED = _counter("status.handled", "connections the server has handled since its start")
STATUS_REQUESTS = _counter(
    "status.requests", "requests since the server's start, our polls included"
)
STATUS_READING = _gauge("status.reading", "connections on which the server reads a request")
STATUS_WRITING = _gauge("status.writing", "connections on which the server writes an answer")
STATUS_WAITING = _gauge("status.waiting", "idle keep-alive connections")
STATUS_BUSY = _gauge(
    "status.busy", "Apache's processes or threads that serve a connection or a request"
)
STATUS_IDLE = _gauge("status.idle", "Apache's processes or threads that wait for one")
STATUS_GENERATION = _gauge(
    "status.generation", "Apache's generation of processes: each reload or restart begins one"
)
STATUS_PLACES = _gauge(
    "status.places",
    "places of Apache's scoreboard, where each connection takes one (prefork, worker): "
    "MaxRequestWorkers",
)
STATUS_LIMIT = _gauge(
    "status.limit", "open connections at which the frontend of HAProxy that we use is full (slim)"
)
STATUS_LIMIT_IN_ALL = _gauge(
    "status.limit_in_all",
    "connections that all frontends of HAProxy may have together (global maxconn, by its HTML "
    "page)",
)
STATUS_BEHIND = _gauge(
    "status.behind",
    "sessions that the servers of the backend of HAProxy that we use have more than at the first "
    "page",
)
STATUS_BEHIND_LIMIT = _gauge(
    "status.behind_limit", "how many more these may have: the sum of their slim, less those"
)
STATUS_POLLS = _counter(
    "status.polls", "status requests sent since our start; the server counts them as requests"
)
STATUS_UNANSWERED = _counter(
    "status.unanswered",
    "status requests without an answer, which the server may have counted or not",
)
STATUS_CONNECTS = _counter(
    "status.connects", "connections of our polls; the server counts each as one accept"
)
RUNTIME_HEAP_BYTES = _gauge(
    "runtime.heap_bytes", "objects in the server's heap by its runtime, garbage included"
)
RUNTIME_LIVE_BYTES = _gauge(
    "runtime.live_bytes", "of these, what was alive after the last collection, by the runtime"
)
RUNTIME_OUTSIDE_BYTES = _gauge(
    "runtime.outside_bytes",
    "memory outside the server's heap that its objects hold (Buffers of Node, direct ones of Java)",
)
RUNTIME_COLLECTIONS = _counter(
    "runtime.collections", "major collections of garbage since the server's start"
)
RUNTIME_COLLECTED_AT_S = _gauge(
    "runtime.collected_at_s", "when the last collection ended, in seconds since 1970"
)
RUNTIME_STACKS_BYTES = _gauge("runtime.stacks_bytes", "stacks of the runtime's threads (Go)")
RUNTIME_GOROUTINES = _gauge("runtime.goroutines", "goroutines of a server in Go")
RUNTIME_GOAL_BYTES = _gauge(
    "runtime.goal_bytes", "size of the heap at which the next collection begins"
)
RUNTIME_OWN_BYTES = _gauge(
    "runtime.own_bytes", "structures of the runtime itself in use (Go: mspan, mcache, gc, other)"
)
RUNTIME_LIMIT_BYTES = _gauge("runtime.limit_bytes", "the greatest size that the heap may have")
RUNTIME_OLD_LIMIT_BYTES = _gauge(
    "runtime.old_limit_bytes",
    "the greatest size of the JVM's old generation, where it is smaller than the heap",
)
RUNTIME_GOGC_PERCENT = _gauge(
    "runtime.gogc_percent", "growth of Go's heap after which a collection begins (GOGC)"
)
RUNTIME_ALLOCATED_BYTES = _gauge(
    "runtime.allocated_bytes", "memory in use by the count of the server's allocator, no garbage"
)
RUNTIME_FORCED_BYTES = _gauge(
    "runtime.forced_bytes", "what was alive after a collection that asyncli asked for (--collect)"
)
RUNTIME_FORCED_OUTSIDE_BYTES = _gauge(
    "runtime.forced_outside_bytes", "of that, what objects of the heap held outside it"
)
RUNTIME_FORCED_S = _gauge("runtime.forced_s", "how long that collection took")
RUNTIME_DESCRIPTORS = _gauge(
    "runtime.descriptors", "descriptors of the process whose page of metrics is read"
)
RUNTIME_CONNECTIONS = _gauge(
    "runtime.connections",
    "active connections by the page of metrics that the memory is of, where it has no descriptors",
)
PAGE = _family(
    "page.",
    "a row of the server's page of metrics that may count its connections, where no rule names "
    "one: the number of its --server-metrics, and its name with its labels",
    "page_row",
    "row",
)
SERVER_PROCESSES = _gauge("server.processes", "processes of the server")
SERVER_STOPPED = _gauge(
    "server.stopped",
    "of these, how many a signal or a debugger has stopped (state T of /proc/PID/stat)",
)
SERVER_THREADS = _gauge("server.threads", "threads of the server")
SERVER_ENDED = _counter(
    "server.ended",
    "server processes that ended since our start: a reload ends all workers, a crash one",
)
SERVER_STARTED = _counter(
    "server.started",
    "server processes that appeared since our start: by a reload, or for connections",
)
SERVER_JOINED = _counter(
    "server.joined",
    "of these, workers: processes whose parent had children when sampling began, and their "
    "children",
)
SERVER_BRIEF = _counter(
    "server.brief",
    "server processes that ended after only one reading had seen them: others may have come and "
    "gone between two readings",
)
SERVER_WORKERS = _gauge(
    "server.workers",
    "workers of nginx, by the titles of its processes: its cache manager and cache loader are none",
)
SERVER_WORKERS_STOPPED = _gauge(
    "server.workers_stopped", "of these, how many a signal or a debugger has stopped"
)
SERVER_WORKERS_ENDED = _counter(
    "server.workers_ended", "workers of nginx that ended since our start"
)
SERVER_KILLED = _counter(
    "server.killed",
    "server processes that the kernel killed for lack of memory since our start, by its log",
)
SERVER_SOCKETS = _gauge(
    "server.sockets",
    "established connections at the server's ports that a program has accepted (sock_diag)",
)
SERVER_SOCKETS_WAITING = _gauge(
    "server.sockets_waiting", "established connections at those ports that nobody has accepted yet"
)
SERVER_SOCKETS_UNACKNOWLEDGED = _gauge(
    "server.sockets_unacknowledged",
    "accepted connections at those ports on which the server sent what is not acknowledged",
)
SERVER_SOCKETS_BYTES = _gauge(
    "server.sockets_bytes",
    "memory of accepted connections' sockets at those ports: queued to send, received and unread, "
    "and reserved for either (sock_diag); read only for runs in which clients stall",
)
SERVER_SOCKETS_ELSEWHERE = _gauge(
    "server.sockets_elsewhere", "accepted connections at other ports at which the server listens"
)
SERVER_LISTENERS = _gauge("server.listeners", "sockets that listen at the server's ports")
SERVER_LISTENERS_BACKLOG = _gauge(
    "server.listeners_backlog",
    "the least backlog of these: connects that the kernel keeps until the server accepts them",
)
SERVER_LISTENERS_OPENED = _counter(
    "server.listeners_opened", "of these, opened since our start: 0 while the same sockets listen"
)
SERVER_LISTENERS_DROPPED = _counter(
    "server.listeners_dropped",
    "connects that these dropped since our start, mostly because their queue was full",
)
SERVER_PSS_BYTES = _gauge(
    "server.pss_bytes", "proportional set size, summed over the server's processes"
)
SERVER_USS_BYTES = _gauge("server.uss_bytes", "private memory, summed over the server's processes")
SERVER_ANON_SHMEM_BYTES = _gauge(
    "server.anon_shmem_bytes", "PSS of anonymous and shared memory with swap, summed; without files"
)
SERVER_SHMEM_BYTES = _gauge(
    "server.shmem_bytes",
    "the shared part of these: shared memory and mapped files in memory (tmpfs)",
)
SERVER_FILE_BYTES = _gauge(
    "server.file_bytes", "PSS of pages of files, summed: the kernel writes them back and takes them"
)
SERVER_FILE_RSS_BYTES = _gauge(
    "server.file_rss_bytes", "resident pages of files, summed (counts shared pages many times)"
)
SERVER_LAZYFREE_BYTES = _gauge(
    "server.lazyfree_bytes", "memory that the server has marked as free (MADV_FREE) and still has"
)
SERVER_RSS_BYTES = _gauge(
    "server.rss_bytes", "resident set size, summed (counts shared pages many times)"
)
SERVER_CPU_S = _counter(
    "server.cpu_s", "user and system time of the server's processes since their start"
)
SERVER_DESCRIPTORS = _gauge(
    "server.descriptors", "descriptors of the server's process that is closest to its limit"
)
SERVER_DESCRIPTORS_OPEN = _gauge(
    "server.descriptors_open", "descriptors of all processes of the server"
)
SERVER_DESCRIPTORS_LIMIT = _gauge("server.descriptors_limit", "the limit of that process")
SERVER_DESCRIPTORS_CLOSED = _gauge(
    "server.descriptors_closed", "descriptors it had open and closed before we saw it, at most"
)
SERVER_DESCRIPTORS_TABLE = _gauge(
    "server.descriptors_table", "the most that it ever had open, by its processes' tables (FDSize)"
)
SERVER_GROUP_BYTES = _gauge(
    "server.group_bytes",
    "memory of the server's control group without page cache, if it has a limit",
)
SERVER_GROUP_LIMIT_BYTES = _gauge(
    "server.group_limit_bytes", "the lowest limit of that group and those above it"
)
SERVER_GROUP_KILLED = _counter(
    "server.group_killed", "processes of that group killed for lack of memory since it was made"
)
SERVER_GROUP_CPUS = _gauge(
    "server.group_cpus",
    "cores that the server's control group, or the tightest one above it, may use on average "
    "(cpu.max, cpu.cfs_quota_us)",
)
SERVER_GROUP_PERIODS = _counter(
    "server.group_periods", "periods of that quota, of 0.1 s each as a rule, with work to do"
)
SERVER_GROUP_THROTTLED = _counter(
    "server.group_throttled", "of these, in which the quota was used up, and all its tasks waited"
)
SERVER_GROUP_TASKS = _gauge(
    "server.group_tasks",
    "threads of the server's control group, or of the one above it with the least room",
)
SERVER_GROUP_TASKS_LIMIT = _gauge("server.group_tasks_limit", "how many these may be (pids.max)")
SERVER_SOURCE_PORTS = _gauge(
    "server.source_ports",
    "ports from which the server may connect to one address (ip_local_port_range of its network "
    "namespace)",
)
SERVER_USER_TASKS = _gauge(
    "server.user_tasks",
    "threads of the server's user: the server's, and those of others when sampling began",
)
SERVER_USER_TASKS_LIMIT = _gauge(
    "server.user_tasks_limit", "how many these may be (RLIMIT_NPROC, to which root is not subject)"
)
SERVER_ADDRESS_SPACE_BYTES = _gauge(
    "server.address_space_bytes",
    "address space of the server's process that is closest to its limit, if it has one",
)
SERVER_ADDRESS_SPACE_LIMIT_BYTES = _gauge(
    "server.address_space_limit_bytes", "that limit (RLIMIT_AS)"
)
SERVER_DATA_BYTES = _gauge(
    "server.data_bytes",
    "private writable memory of the server's process that is closest to its limit, if it has one",
)
SERVER_DATA_LIMIT_BYTES = _gauge("server.data_limit_bytes", "that limit (RLIMIT_DATA)")
SERVER_MAPPINGS = _gauge(
    "server.mappings", "memory maps of the server's process with the largest address space"
)
SERVER_MAPPINGS_LIMIT = _gauge(
    "server.mappings_limit", "how many a process may have (vm.max_map_count)"
)
GENERATOR_PROCESSES = _gauge("generator.processes", "processes of asyncli: host and workers")
GENERATOR_USS_BYTES = _gauge("generator.uss_bytes", "private memory of host and workers")
GENERATOR_PSS_BYTES = _gauge("generator.pss_bytes", "proportional set size of host and workers")
GENERATOR_CPU_S = _counter("generator.cpu_s", "user and system time of host and workers")
SESSION_USS_BYTES = _gauge(
    "session.uss_bytes", "private memory of the session process (collector, run file, screen)"
)
SESSION_CPU_S = _counter("session.cpu_s", "user and system time of the session process")
KERNEL_SOCKET_BYTES = _gauge(
    "kernel.socket_bytes",
    "slab objects in use for sockets (TCP, sock_inode_cache, filp, dentry...)",
)
KERNEL_SOCKET_SLAB_BYTES = _gauge(
    "kernel.socket_slab_bytes", "pages held by those slabs: the upper bound"
)
KERNEL_SLAB_FREE_BYTES = _gauge(
    "kernel.slab_free_bytes", "free objects of those slabs and of /proc's: free, but not in MemFree"
)
KERNEL_FILES_BYTES = _gauge(
    "kernel.files_bytes", "the part of kernel.socket_bytes of open files that are no sockets"
)
KERNEL_LISTING_BYTES = _gauge(
    "kernel.listing_bytes",
    "/proc inodes and dentries, one for each descriptor listed in /proc/PID/fd",
)
KERNEL_SLAB = _family(
    "kernel.slab.",
    "bytes in use of one slab cache for sockets, by its name",
    "kernel_slab_bytes",
    "cache",
)
KERNEL_SOCKETS = _gauge(
    "kernel.sockets", "sockets of every family in this network namespace (sockstat)"
)
KERNEL_TCP_INUSE = _gauge("kernel.tcp_inuse", "TCP sockets in use (sockstat)")
KERNEL_TCP_ORPHAN = _gauge("kernel.tcp_orphan", "orphaned TCP sockets")
KERNEL_TCP_TW = _gauge("kernel.tcp_tw", "sockets in TIME_WAIT")
KERNEL_TCP_ALLOC = _gauge("kernel.tcp_alloc", "allocated TCP sockets")
KERNEL_TCP_MEM_BYTES = _gauge(
    "kernel.tcp_mem_bytes", "pages of queued TCP buffers on the host; noisy, and already in slab"
)
HOST_USED_BYTES = _gauge(
    "host.used_bytes",
    "MemTotal - MemFree - Buffers - (Cached - Shmem) - host.cpu_lists_bytes - "
    "kernel.slab_free_bytes",
)
HOST_CPU_LISTS_BYTES = _gauge(
    "host.cpu_lists_bytes", "free pages on per-CPU lists, which MemFree does not count (zoneinfo)"
)
HOST_FREE_BYTES = _gauge("host.free_bytes", "MemFree")
HOST_AVAILABLE_BYTES = _gauge("host.available_bytes", "MemAvailable")
HOST_SLAB_BYTES = _gauge("host.slab_bytes", "Slab of meminfo")
HOST_PAGETABLE_BYTES = _gauge("host.pagetable_bytes", "PageTables of meminfo")
HOST_COMMITTED_BYTES = _gauge(
    "host.committed_bytes",
    "Committed_AS of meminfo: what programs asked for, used or not; only where the kernel grants "
    "no more than its limit (vm.overcommit_memory 2)",
)
HOST_COMMIT_LIMIT_BYTES = _gauge(
    "host.commit_limit_bytes", "that limit: CommitLimit of meminfo (vm.overcommit_ratio)"
)
HOST_PROCESSES_BYTES = _gauge(
    "host.processes_bytes", "AnonPages and Shmem of meminfo: memory of all processes, without files"
)
HOST_SHMEM_BYTES = _gauge(
    "host.shmem_bytes", "Shmem of meminfo: shared memory and files in memory (tmpfs), mapped or not"
)
HOST_OTHER_PROCESSES = _gauge(
    "host.other_processes", "processes of the host that are neither the server's nor asyncli's"
)
HOST_TASKS = _gauge("host.tasks", "threads of all processes of the host (loadavg)")
HOST_TASKS_LIMIT = _gauge(
    "host.tasks_limit",
    "how many these may be: kernel.threads-max, or kernel.pid_max if that is lower",
)
HOST_KILLED = _counter("host.killed", "processes of the host killed for lack of memory since boot")
HOST_CPU_BUSY_S = _counter(
    "host.cpu_busy_s", "CPU seconds of the host that were not idle, all cores"
)
BESIDE_DESCRIPTORS = _family(
    "beside.descriptors.",
    "descriptors by which another program's processes rose, not those of the server's clients",
    "beside_descriptors",
    "program",
)
BESIDE_PROCESSES = _family(
    "beside.processes.", "processes that this program started", "beside_processes", "program"
)
BESIDE_HOLDERS = _family(
    "beside.holders.",
    "processes of this program that hold connections at the server's ports",
    "beside_holders",
    "program",
)
BESIDE_DESCRIPTORS_OPEN = _family(
    "beside.descriptors_open.",
    "descriptors of the process of this program that is nearest to its limit, if it holds the "
    "server's connections or is behind the server",
    "beside_descriptors_open",
    "program",
)
BESIDE_DESCRIPTORS_LIMIT = _family(
    "beside.descriptors_limit.",
    "the limit of that process (RLIMIT_NOFILE)",
    "beside_descriptors_limit",
    "program",
)
BESIDE_BYTES = _family(
    "beside.bytes.",
    "anonymous and shared memory by which those of its processes rose; negative where it fell, as "
    "by a collection of garbage",
    "beside_bytes",
    "program",
)
AGENT_USS_BYTES = _gauge(
    "agent.uss_bytes", "private memory of the agent that samples the server's host"
)
AGENT_CPU_S = _counter("agent.cpu_s", "user and system time of that agent")
CLIENT = _family(
    "client.",
    "the same for asyncli's host, if an agent samples the server's: client.host..., client.tcp...",
)
CLOCK_SUSPENDED_S = _gauge(
    "clock.suspended_s", "seconds that this machine was suspended; a value at each wake-up"
)
SILENT = _family(
    "silent.",
    "seconds without a message from this client host of a cluster; a value when messages resume",
)
TCP = _family(
    "tcp.",
    "a TCP extension counter since boot: ListenOverflows, ListenDrops, RetransSegs...",
    "tcp_events_total",
    "counter",
)
PROBE = _family("probe.", "seconds that one round of this probe took", "probe_seconds", "probe")
#: Retransmitted segments.
TCP_RETRANS_SEGS = f"{TCP}RetransSegs"
#: The memory that live views and figures show, by whose it is; the first of these that was read.
MEMORY = {
    "host": (HOST_USED_BYTES,),
    "server": (SERVER_PSS_BYTES, SERVER_RSS_BYTES),
    "kernel": (KERNEL_SOCKET_BYTES,),
    "generator": (GENERATOR_USS_BYTES,),
}
#: The server's for charts of what came since the first connect. Pages of files came with no
#: connection, and its share of them falls when another program starts that maps the same ones.
SERVER_MEMORY_THAT_CAME = (SERVER_ANON_SHMEM_BYTES, *MEMORY["server"])
#: Prefixes of metrics of TCP, which say nothing about Unix sockets.
OF_TCP = (TCP, "kernel.tcp_", f"{CLIENT}{TCP}", f"{CLIENT}kernel.tcp_")
#: Counters that begin at zero when an agent starts: a run adds up what they count before and after
#: its restart.
SINCE_AGENT_START = (
    STATUS_POLLS, STATUS_CONNECTS, STATUS_UNANSWERED, SERVER_ENDED, SERVER_STARTED, SERVER_JOINED,
    SERVER_BRIEF,
    SERVER_LISTENERS_OPENED, SERVER_LISTENERS_DROPPED, SERVER_WORKERS_ENDED, SERVER_KILLED,
    AGENT_CPU_S,
)  # fmt: skip
#: The families; none is a prefix of another.
FAMILIES = tuple(name for name in METRICS if name.endswith("."))
# Metrics and families that tables, live views and Prometheus show, and no report uses.
_IN_NO_REPORT = (
    GENERATOR_PSS_BYTES, HOST_FREE_BYTES, HOST_PAGETABLE_BYTES, HOST_SLAB_BYTES, KERNEL_SLAB,
    KERNEL_SOCKET_SLAB_BYTES, KERNEL_TCP_ORPHAN, PROBE, STATUS_READING, STATUS_WAITING,
    STATUS_WRITING,
)  # fmt: skip
# Of the probes those whose pages are compared with our counts.
_COMPARED = (f"{PROBE}metrics", f"{PROBE}status")


def is_in_reports(name: str) -> bool:
    """Whether a report may use the metric ``name``."""
    return name in _COMPARED or (family_of(name) or name) not in _IN_NO_REPORT
