"""Evidence and remedy of each mechanism of :mod:`asyncli.analysis.bottleneck`."""

from __future__ import annotations

from typing import Any

from asyncli.findings import Words, fill
from asyncli.findings.loss_causes import unseen
from asyncli.findings.losses import CONNECT_WORDS, settings
from asyncli.model.units import format_bytes

_MEMORY_LIMIT = (
    "raise its limit (systemd MemoryMax=, docker --memory), or make a connection cheaper"
)
_SHARE_THREADS = "or let a thread serve several connections"
_BETWEEN = "see routes, firewalls and the load of middle boxes; ip -s link and nstat show drops"
_ARRIVED = (
    "{timeouts!n} connects got no answer, and never reached {server}: its status page counts "
    "{accepted!n} of {started!n} accepted"
)
_REJECTS = (
    "see rules that reject, on its host too (nft list ruleset, iptables-save), and what redirects "
    "its port"
)
#: Mechanism, or one of its forms -> (evidence, remedy).
_WAYS: dict[str, tuple[str, str]] = {
    "both_busy": (
        "{busy:.1f} of the {cpus:.0f} CPUs of this host were busy: {shares}",
        "run asyncli on another host, ramp more slowly, or use a longer --keepalive",
    ),
    "beats": (
        "{slow}, but asyncli itself sent it late: p99 {late_s!d} of {whole_s!d}",
        "leave more CPU to asyncli, ramp more slowly, or use a longer --keepalive",
    ),
    "memory": (
        "{host} had {least!b} of memory left, of {before!b} before the first connect",
        "run asyncli on another host, or where there is more memory",
    ),
    "host_memory": (
        "{host} had {least!b} of memory left, of {before!b} before the first connect",
        "give it more memory, or make a connection cheaper",
    ),
    "memory_limit": (
        "{server} had no memory left: its control group may use {limit!b}, and used {most!b}",
        _MEMORY_LIMIT,
    ),
    "memory_killed": (
        "the kernel killed {killed} of {server} for lack of memory: its control group may use "
        "{limit!b}{used}",
        _MEMORY_LIMIT,
    ),
    "memory_killed_in_group": (
        "the kernel killed {killed} of the control group of {server} for lack of memory, perhaps "
        "another program's: the group may use {limit!b}{used}",
        f"see the kernel's log (dmesg), which names what it killed; {_MEMORY_LIMIT}",
    ),
    "not_handled": (
        "{server} accepted {refused!n} connections and closed them at once: it had no free slot",
        "raise its limit on connections{more_slots}",
    ),
    "no_session": (
        "{server} accepted {refused!n} connections and gave them no session: a rule rejected them, "
        "or their handshake of TLS failed",
        "see its rules that reject (tcp-request connection, tcp-request session), and its counts "
        "of denied connections (dcon, dses)",
    ),
    "sessions": (
        "{server} had {most!n} sessions open, its status page's own included, and the frontend "
        "that asyncli uses is full at {limit!n} in all (slim)",
        "raise maxconn in haproxy.cfg, in the frontend and in global",
    ),
    "sessions_in_all": (
        "{server} had {most!n} sessions open, its status page's own included, and may have "
        "{limit!n} in all its frontends (global maxconn)",
        "raise maxconn in the global section of haproxy.cfg",
    ),
    "sessions_behind": (
        "the servers of the backend of {server} that asyncli uses took {most!n} sessions after the "
        "first connect, and had room for {limit!n} (slim)",
        "raise maxconn of the servers of that backend in haproxy.cfg",
    ),
    "group_tasks": (
        "the control group of {server} had {most!n} threads, and may have {limit!n} (pids.max)",
        f"raise its limit (systemd TasksMax=, docker --pids-limit), {_SHARE_THREADS}",
    ),
    "user_tasks": (
        "the user of {server} had {most!n} threads, and may have {limit!n} (RLIMIT_NPROC)",
        f"raise its limit (systemd LimitNPROC=, ulimit -u), {_SHARE_THREADS}",
    ),
    "host_tasks": (
        "the host of {server} had {most!n} threads, and may have {limit!n} (kernel.threads-max, "
        "kernel.pid_max)",
        f"raise both with sysctl -w, {_SHARE_THREADS}",
    ),
    "address_space": (
        "a process of {server} had {most!b} of address space, and may have {limit!b} (RLIMIT_AS)",
        "raise its limit (systemd LimitAS=, ulimit -v), or give its threads smaller stacks "
        "(ulimit -s)",
    ),
    "data": (
        "a process of {server} had {most!b} of private writable memory, and may have {limit!b} "
        "(RLIMIT_DATA)",
        "raise its limit (systemd LimitDATA=, ulimit -d), or give its threads smaller stacks "
        "(ulimit -s)",
    ),
    "committed": (
        "the host of {server} had granted {most!b} of memory, used or not, and grants {limit!b} at "
        "most (vm.overcommit_memory 2)",
        "give its threads smaller stacks (ulimit -s); or raise vm.overcommit_ratio, add swap, or "
        "set vm.overcommit_memory 0 or 1",
    ),
    "mappings": (
        "a process of {server} had {most!n} memory maps, and may have {limit!n} (vm.max_map_count)",
        f"raise it with sysctl -w vm.max_map_count=N, {_SHARE_THREADS}",
    ),
    "busy_workers": (
        "all {busy!n} workers of {server} were busy to the end, and none was idle",
        "raise MaxRequestWorkers and ServerLimit (of processes or threads), or use the event MPM",
    ),
    "descriptors": (
        "a process of {server} had {most!n} descriptors open, and may open none numbered "
        "{limit!n} or higher (RLIMIT_NOFILE)",
        "raise its limit{more_descriptors}, or that of the unit or shell that starts it (systemd "
        "LimitNOFILE=, ulimit -n)",
    ),
    "cpu": (
        "{server} used {used:.2f} cores of {of}{also}",
        "give it more processes or threads, or more cores; or use a longer --keepalive",
    ),
    "throttled": (
        "{server} may use {cpus:.3g} cores (its control group's quota, cpu.max), and had used them "
        "up in {share!p} of the periods: its processes waited for the next one{also}",
        "raise its quota (systemd CPUQuota=, docker --cpus, limits.cpu of Kubernetes)",
    ),
    "listen_queue": (
        "{connects} of asyncli were sent again or in vain while a listen queue on {host} was full "
        "(ListenOverflows): looks like the server's",
        "raise net.core.somaxconn and the server's backlog=, let it accept faster, or ramp more "
        "slowly (--ramp)",
    ),
    "listen_queue_full": (
        "the server's listen queue was full {times}, so connects had to wait",
        "raise net.core.somaxconn and its backlog=, let it accept faster, or ramp more slowly "
        "(--ramp)",
    ),
    "never_arrived": (_ARRIVED, _BETWEEN),
    "never_arrived_there": (
        f"{_ARRIVED}; packets were lost, or a full listen queue on its host dropped them, which "
        "this host cannot see",
        f"{_BETWEEN}; nstat -az TcpExtListenOverflows on its host shows its queue",
    ),
    "refused_unheard": (
        "{connects}, and no socket listened at the server's ports meanwhile",
        "see why it does not listen: its error log, or a restart that closes its sockets",
    ),
    "refused_on_the_way": (
        "{connects}, though {server} listened all the while with the same sockets: looks like a "
        "packet filter or another box on the way",
        _REJECTS,
    ),
    "unanswered_on_the_way": (
        "{connects}, and the listening sockets of {server} dropped none: looks like a packet "
        "filter, another box on the way or lost packets",
        "see firewalls of this host and of the server's (nft list ruleset), routes and links "
        "between",
    ),
    "refused_by_either": (
        "{connects}, by {server} or by a packet filter on the way: a reset does not say who sent "
        "it",
        f"see that {{server}} listens at this address and port; {_REJECTS}",
    ),
    "tls_failed": ("TLS handshakes failed: {why}", "{remedy}"),
    "handshake_refused": ("{server} refused handshakes: {why}", "{remedy}"),
    "errors": (
        "{server} answered heartbeats with errors: {errors}",
        "{remedy}; a proxy's errors may be its backend's",
    ),
    "slow": (
        "{slow}{cores}",
        "see what its processes wait for: a lock, a disk, a backend, a limit on its rate",
    ),
    "same_age": (
        "{steps} steps lost connections at the same age, {age_s!d}: looks like an age limit of "
        "the server or of a middle box",
        "raise that limit",
    ),
    "own_limit": (
        "{steps} steps of {asked!n} held the same number, {held!n}: this host was busy or late, "
        "but not for the same number each time; {why}",
        "{remedy}",
    ),
    "connect_rate": (
        "{asked!n} connections were held when they were opened at {slower}, but not at {first}, "
        "tried before and after: the limit is on connects in a time, not on their number; at "
        "{first} {why}",
        "raise the limit on connects in a time: of the server, of a balancer, or of a packet "
        "filter on the way; to find how many connections are held, search again with --ramp {ramp}",
    ),
    "unknown": ("{losses}", "see the report of that step"),
    "preflight": ("this host can open no more (preflight): {short}", "{remedy}"),
}
#: The forms of a mechanism with several forms, or with another name; for failed connects they are
#: the causes.
_FORMS = {
    "descriptors": ("no_descriptors", "descriptors"), "local_ports": ("no_ports",),
    "slots": ("not_handled", "sessions", "sessions_in_all", "sessions_behind", "busy_workers"),
    "cpu": ("cpu", "throttled"),
    "tasks": ("group_tasks", "user_tasks", "host_tasks"),
    "memory_limit": ("memory_limit", "memory_killed", "memory_killed_in_group"),
    "never_arrived": ("never_arrived", "never_arrived_there"), "lifetime": ("same_age",),
    "refused": ("refused", "refused_unheard", "refused_on_the_way", "refused_by_either"),
}  # fmt: skip
_FORM_OF = {form: code for code, forms in _FORMS.items() for form in forms}
#: The codes of bottlenecks, beside those of diagnoses and findings.
CODES = tuple(dict.fromkeys(_FORM_OF.get(form, form) for form in (*_WAYS, *_FORM_OF)))
# Values of fields where no step is explained, and those of single forms.
_UNSEEN = {
    "slow": "heartbeats were answered too late",
    "losses": "nothing shows the bottleneck",
    "limit": "N",
    "most": "N",
    "used": "nearly all",
    "of": "those that it can use",
    "host": "a host",
    "least": "a small part",
    "before": "what it had",
    "cpus": "N",
    "busy": "nearly all",
    "shares": "with asyncli, the server and other programs",
    "late_s": "most",
    "whole_s": "that time",
    "killed": "processes",
    "errors": "a status of 400 or more",
    "why": "the report says why",
    "short": "a limit is too low",
    "steps": "several",
    "age_s": "T",
    "times": "at times",
    "refused": "some",
    "connects": "connects were refused",
    "slower": "a slower pace",
    "first": "the first pace",
    "ramp": "N/s",
    "timeouts": "some",
    "accepted": "some",
    "started": "them",
    "asked": "a count",
    "held": "N",
    **dict.fromkeys(("also", "cores"), ""),
}
_UNSEEN_IN = {
    "busy_workers": {"busy": "the"},
    "connect_rate": {"asked": "as many", "why": "they were refused"},
    "memory_limit": {"limit": "so much", "most": "all of that"},
    "address_space": {"limit": "so much", "most": "nearly as much"},
    "data": {"limit": "so much", "most": "nearly as much"},
    "memory_killed": {"limit": "so much", "used": ""},
    "memory_killed_in_group": {"limit": "so much", "used": ""},
}


def used_of_limit(most: float, *, is_full: bool) -> str:
    """What the server's control group used at most, after its limit. It is read once a second, and
    may be full in between.
    """
    if is_full:
        return f", and used {format_bytes(most)}"
    return f", and used {format_bytes(most)} at most when it was read, once a second"


def meanings(code: str) -> list[Words]:
    """The words of each form of the mechanism ``code``, without a step."""
    return [
        unseen(_WAYS.get(form) or CONNECT_WORDS[form], **{**_UNSEEN, **_UNSEEN_IN.get(form, {})})
        for form in _FORMS.get(code, (code,))
    ]


def words_of(form: str, **fields: Any) -> Words:
    """The words of the mechanism ``form``."""
    return fill(_WAYS[form], {**settings(fields.get("server", "")), **fields})
