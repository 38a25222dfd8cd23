"""Evidence and remedy of each mechanism of :mod:`asyncli.analysis.losses`.

:class:`LossDetails` fills ``{loss}``, ``{were}``, ``{connections}``,
``{age}``, ``{idle}``, ``{medians}`` and ``{when}``. ``{likely}`` is "looks
like" without confirmation; ``{known}`` names servers with that default idle time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from asyncli.findings import Words, fill
from asyncli.findings.event_words import (
    EventWords,
    MarkWords,
    commands_first,
    in_the_time_of,
    near,
    see_commands,
)
from asyncli.findings.known_timers import Ends, default_of, known_idle, timer_of
from asyncli.findings.losses import describe_loss, plain_braces, settings
from asyncli.model.units import format_clock, format_count, format_duration, format_many

_IDLE = "{loss}, {idle} after their last answer"
_SEND_MORE = "raise that timeout{sends}, or have the server send"
_ROOM = "raise worker_connections in nginx.conf: each worker needs 1.1 times its share"
_REUSE = "'worker_connections are not enough, reusing connections' in its error log"
_SLEPT = (
    "{loss} after this machine had been suspended for {for_s!d}, at {at_s!c}, and had not been "
    "heard since: "
)
_AWAKE = "keep this machine awake: systemd-inhibit asyncli ..."
_CRASH = "see its error log ('worker process ... exited on signal') and the kernel's"
_STILL_COUNTS = "{server}'s own count of connections still holds {kept!n} of them: "
_BOXES = "see firewalls and load balancers between here and the server"
_NO_RELOAD = "do not reload it while you measure"
#: The remedies of a server that stood still: a signal had stopped it, or it waited.
WHAT_STOPPED_IT = "see what stopped it (SIGSTOP, a debugger)"
WHAT_IT_WAITS_FOR = (
    "see what it waits for: a backend, a lock, a disk, or a control group that is frozen"
)
_WAY = "see routes, firewalls and links between here and the server"
_LISTENS = (
    "see whether it accepts (ss -ltn: Recv-Q); give it more processes, threads or slots{more_slots}"
)
#: The remedy of what ended at one moment for an unknown reason.
SEE_ITS_LOG = "see the server's log of that moment"
_ANSWERS = "see its error log, and what its workers wait for: a backend, a lock, a free thread"
_WAY_CUT = ": looks like the network path or its host was down"
#: Which heartbeats were answered, where those of the lost connections never were.
NONE_ANSWERED = "no heartbeat was answered"
OTHERS_ANSWERED = "others were answered, these never"
#: Whose idle timeout it is, where its time is no known default.
UNKNOWN_IDLE_TIMEOUT = "an idle timeout of the server or of a middle box"
#: Mechanism, or one of its forms -> (evidence, remedy).
_CAUSES: dict[str, tuple[str, str]] = {
    # Recorded by the run.
    "generator_lost": ("{were} lost with {processes}", "{remedy}"),
    "not_http": (
        "{connections} answered with something other than HTTP{medians}{when}{reasons}",
        "{remedy}",
    ),
    "no_longer_http": (
        "{connections} answered with something other than HTTP{medians}{when}; until then "
        "{before!n} heartbeats had been answered with HTTP{reasons}",
        "see what answers there now: a middle box (a portal, TLS) or another program on its port",
    ),
    "broken_protocol": (
        "{were} ended, because the server sent something else than {rule} allows{when}: {reasons}",
        "{remedy}",
    ),
    "stream_reset": (
        "{were} given up, because the server reset the stream of a heartbeat{when}: {reasons}",
        "{remedy}",
    ),
    "answer_unread": ("{were} given up, because the server sent {reasons}{when}", "{remedy}"),
    "goodbye": ("{were} ended by the server, {said}{medians}{when}", "{remedy}"),
    "tls_error": ("{loss}{when}: {reasons}", "{remedy}"),
    "http_error": ("{loss} after an error answer (HTTP {statuses}){when}", "{remedy}"),
    "suspended": (f"{_SLEPT}the server or a middle box closed them meanwhile", _AWAKE),
    "suspended_too_long": (
        f"{_SLEPT}nginx keepalive_timeout (nginx.conf says {{timeout_s!d}}) expired meanwhile",
        _AWAKE,
    ),
    "client_cut": ("{loss} ({timeout_s!d}); {cut}", "{remedy}"),
    # Timers and limits.
    "keepalive_off": (
        "{loss} after their first request each: {likely}keep-alive is off{configured}{when}",
        "enable keep-alive{keep_alive}",
    ),
    "http_1_0": (
        "{were} ended by the server: it answers HTTP/1.0 without 'Connection: keep-alive', and "
        "closes after such an answer{when}",
        "have it answer HTTP/1.1 (Python's http.server: protocol_version = 'HTTP/1.1'), or put a "
        "proxy that does in front of it",
    ),
    "keepalive_timeout": (
        f"{_IDLE}: {{likely}}{{limit}}{{when}}",
        "raise {timer}{or_sends}",
    ),
    "client_header_timeout": (
        "{loss}, {idle} after they were opened and before their first request: "
        "{likely}{limit}{when}",
        "raise {timer}{or_first}",
    ),
    "keepalive_requests": (
        "{loss} after {requests} requests each, at age {age}: {likely}{limit}{when}",
        "raise {timer}, or use a longer --keepalive",
    ),
    "keepalive_time": (
        "{loss} at age {age}, at their next heartbeat: {likely}{limit}{when}",
        "raise {timer}, or hold for less",
    ),
    "farewell": (
        f"{_IDLE}: looks like an idle timeout that answers HTTP 408 (RFC 9110, 15.5.9){{when}}",
        _SEND_MORE,
    ),
    "idle_timeout": (f"{_IDLE}: looks like {{whose}}{{when}}", _SEND_MORE),
    "box_idle_timeout": (
        f"{_IDLE}: nginx.conf says keepalive_timeout {{configured}}: it was changed since, or it "
        "looks like a middle box{known}{when}",
        _SEND_MORE,
    ),
    # "Timed out keep-alive connections are closed normally" (reset_timedout_connection, nginx.org).
    "box_reset_idle": (
        f"{_IDLE}: a server closes such connections in order, so it looks like a middle "
        "box{known}{when}",
        _SEND_MORE,
    ),
    "box_reset_while_open": (
        f"{_IDLE}: a middle box{{known}} ended them, as the server still has {{kept!n}} of their "
        "sockets{when}",
        _SEND_MORE,
    ),
    "box_reset_while_counted": (
        f"{_IDLE}: it looks like a middle box{{known}}, as the server still counts {{kept!n}} of "
        "them as open{when}",
        _SEND_MORE,
    ),
    "box_forgot": (
        "{loss}, all of them idle for {for_s} or longer before (heartbeats are 1 to {gap_s:.0f} s "
        "apart): looks like a middle box that forgets idle connections{known}{when}",
        _SEND_MORE,
    ),
    "request_limit": (
        "{loss} after {requests} answers each, whatever their age: looks like a limit of the "
        "server or of a middle box{when}",
        "raise that limit, or use a longer --keepalive",
    ),
    "request_limit_of_some": (
        "{loss} after {requests} answers each, whatever their age, while others had more: looks "
        "like a limit that only some connections meet, such as one backend's{when}",
        "see which backend, process or code path these had",
    ),
    "request_limit_or_age": (
        "{loss} after {requests} answers each, all at age {age}: looks like a limit of requests "
        "or of age, of the server or of a middle box{when}",
        "raise that limit; which of the two it is, another --keepalive shows: the number of "
        "answers or the age stays",
    ),
    "lifetime": (
        "{loss}, at age {age}, {idle} after their last answer: looks like an age limit of the "
        "server or of a middle box{when}",
        "raise that limit, or hold for less",
    ),
    "closed_at_once": (
        "{loss}, at once and without any answer: they were accepted and not served (no free slot, "
        "or a rule against them; a middle box without a server behind it){when}",
        "see the server's error log, and its limits on connections and descriptors",
    ),
    "refused_requests": (
        "{loss}, {answered}: their heartbeats ended them, at different ages, so it looks like a "
        "rule that refuses some requests (a limit on their rate, or on that of connections), or "
        "like an error in what answers them{when}",
        "see its error log, and rules of the server or of a middle box on the rate of requests and "
        "connections (of one client too: --source spreads them); or use a longer --keepalive",
    ),
    "gave_up_on_backend": (
        "{loss}, {age} after they were opened and without any answer: looks like {server} gave up "
        "on them, as a proxy does whose backend cannot be reached{when}",
        "see the log of {server}, and whether what it passes connections to runs",
    ),
    # No free slots.
    "idle_reuse": (
        f"{_IDLE}, while others opened: {{likely}}nginx ran out of free slots and closed idle "
        f"connections to reuse theirs ({_REUSE}; nginx.conf gives {{slots!n}} in all, {{asked!n}} "
        "were asked for{beside}){when}",
        f"{_ROOM}{{or_stop}}",
    ),
    "likely_reuse": (
        f"{_IDLE}, while others opened: looks like the server has no free slot and closes idle "
        "connections (it never held more than {most!n} of the {asked!n} asked for){when}",
        "raise its limit on connections{more_slots}",
    ),
    "workers_in_turn": (
        "{loss} as {ended!n} workers of {server} ended in turn, and others took their place: looks "
        "like each serves a number of connections or requests and then ends{when}",
        "raise that number{longer_workers}, or see its error log for what ends them",
    ),
    # Bursts.
    "server_ended": (
        "{server} ended or was killed: none of its processes was left",
        "see its error log and the kernel's for what ended it",
    ),
    "connects_refused": (
        "looks like {server} ended: connects were refused from then on",
        "see its error log",
    ),
    "page_never_again": (
        "looks like {server} ended: its status page answered before, and never again",
        "see its error log",
    ),
    "server_restarted": (
        "{server} was restarted: all its processes were replaced",
        "see its log and the service manager's for what restarted it",
    ),
    "box_reset": ("{server} still has {kept!n} of their sockets: a middle box reset them", _BOXES),
    "box_reset_by_count": (
        f"{_STILL_COUNTS}looks like a middle box reset them, or {{server}} did and does not count "
        "it",
        f"{_BOXES}, and its log",
    ),
    "box_seems_reset": (
        "looks like a middle box that was restarted or lost its table of connections",
        _BOXES,
    ),
    "worker_crash": (
        f"{_STILL_COUNTS}{{likely}}{{crashed}}{{perhaps}}",
        _CRASH,
    ),
    "workers_killed_for_memory": (
        "{likely}the kernel killed {killed} of {server}, which had {workers}, for lack of "
        "memory{or_others}",
        "see the kernel's log (dmesg), which names what it killed; raise the limit of its control "
        "group, or make a connection cheaper",
    ),
    # Its count alone does not tell them apart.
    "worker_crash_or_proxy": (
        f"{_STILL_COUNTS}looks like a worker of it crashed or was killed, or a proxy before it "
        "ended them and kept its own connections to it",
        f"{_CRASH}; and the log of a proxy or a middle box between here and {{server}}",
    ),
    "worker_or_backend_ended": (
        "looks like one of {workers} workers of {server} ended with its connections, or one of as "
        "many servers behind it",
        f"{_CRASH}; if it passes connections on, see the servers behind it",
    ),
    "worker_ended": (
        "{likely}{ended!n} of {workers} workers of {server} ended with its connections: a crash, "
        "a shutdown, or it was killed",
        _CRASH,
    ),
    "reload_by_processes": (
        "{likely}{server} ended its workers in order and started others, as at a reload: {ended} "
        "of its processes were replaced{by_event}",
        "{no_reload}",
    ),
    "reload_or_crash": (
        "looks like a reload of {server}, or a crash of all its workers: {ended} of its processes "
        "ended, and others took their place",
        f"see its log of that moment; {_NO_RELOAD}",
    ),
    "reload_by_counts": (
        "{likely}{server} ended its workers in order, as at a reload: its counters continued, and "
        "it closed all, its status poll too",
        _NO_RELOAD,
    ),
    "reload_by_counters": (
        "{server} was reloaded: its counters restarted, and its main process stayed",
        _NO_RELOAD,
    ),
    "likely_reload": (
        "looks like a reload, a restart or the end of {server}",
        "see its log of that moment",
    ),
    "backend_ended": (
        "looks like a backend behind {server} ended, or closed them: {server}'s own processes "
        "went on",
        "see the logs of {server} and of its backends of that moment",
    ),
    "backend_restarted": (
        "looks like a server behind it was restarted, the one of the status page: the page's "
        "counters restarted, and the server's own processes went on",
        "see the log of the server that the status page belongs to, of that moment",
    ),
    "burst": ("cause unknown", "{remedy}"),
    "burst_of_living": (
        "cause unknown: {server}'s own processes went on",
        "{remedy}; if it passes connections on, see the servers behind it",
    ),
    # Heartbeats without a complete answer.
    "never_accepted": (
        "{beats}: looks like {server} has not accepted them (its listen queue holds them), or "
        "does not answer",
        _LISTENS,
    ),
    "left_waiting": (
        "{beats}: {server} has not accepted them, and {waiting!n} connections waited in its "
        "listen queue",
        _LISTENS,
    ),
    "never_answered": (
        "{beats}: {server} accepted them, shook hands, and did not answer",
        _ANSWERS,
    ),
    "never_answered_though_accepted": (
        "{beats}: {server} had accepted them (its listen queue was empty), and did not "
        "answer{or_lost}",
        f"see its limits on connections{{more_slots}}; {_ANSWERS}",
    ),
    "answered_otherwise": (
        "{server} sent something on these connections, but no answer to the heartbeat",
        "see what it sends after a heartbeat: another answer, a part of one, or other messages",
    ),
    "idle_forgotten": (
        "all of them had been idle for {for_s} or longer, while others were answered, and their "
        "heartbeats were acknowledged: looks like {server}, or a proxy before it, forgets idle "
        "connections and does not close them",
        "send heartbeats more often (--keepalive below twice that time), or see how long it keeps "
        "an idle session",
    ),
    "silent_drop": (
        "all of them had been idle for {for_s} or longer, while others were answered{counts}: "
        "{likely}a middle box drops idle connections silently{known}",
        "send heartbeats more often (--keepalive below twice that time), or raise its timeout",
    ),
    "packets_lost": (
        "others were answered, but {again!n} heartbeats ({share!p}) only after they had been sent "
        "again: packets were lost on the way",
        "see links, cables and firewalls between (ip -s link), and the server's own counters",
    ),
    "server_slow": (
        "others were answered late{up_to}: looks like {server} or the network path is overloaded",
        "use fewer --connections, a longer --keepalive or a longer --timeout",
    ),
    "worker_stalled": (
        "others were answered: {likely}{stopped} of {server}'s {workers} stood still{by}",
        "see what its workers do (ps, its error log)",
    ),
    "no_route": (
        "no heartbeat was answered, and {connects} found no route or were blocked: the network "
        "path was down",
        _WAY,
    ),
    "unacknowledged": (
        "no heartbeat was answered, and nothing that was sent was acknowledged ({segments} sent "
        "again){way}",
        _WAY,
    ),
    "part_stood_still": (
        "no heartbeat was answered, though they were acknowledged and the server's status page "
        "answered: looks like a part of it, or a proxy before it, stood still",
        "see its workers and backends, and what is between here and the server",
    ),
    "page_answered": (
        "no heartbeat was answered, though the server's status page answered: looks like the "
        "network path was down",
        _WAY,
    ),
    "server_stalled": (
        "a signal or a debugger had stopped {server}: its status page was silent, and its "
        "processes used no CPU",
        WHAT_STOPPED_IT,
    ),
    "waited_for_something": (
        "looks like {server} waited for something that blocks all of it: its status page was "
        "silent, and its processes used no CPU, though no signal had stopped those that hold "
        "connections",
        WHAT_IT_WAITS_FOR,
    ),
    "stood_still": (
        "looks like {server} was stopped, or waited for something: its status page was silent, "
        "and its processes used no CPU",
        f"{WHAT_STOPPED_IT}; {WHAT_IT_WAITS_FOR}",
    ),
    "computing": (
        "no heartbeat was answered meanwhile, and {server} used {cores:.2f} cores: looks like it "
        "computed something else",
        "see what it computes (a profiler, the log of its garbage collector); give it more "
        "processes or threads",
    ),
    "nobody_answered": (
        "no heartbeat was answered meanwhile: looks like {server} was stopped, or the network "
        "path was down",
        "see whether it runs, and routes and firewalls between",
    ),
    "stopped_here": (
        "no heartbeat was answered meanwhile: looks like {server} was stopped or hung",
        "see what stopped it (SIGSTOP, a debugger, a frozen cgroup), or what it waits for (a "
        "lock, a disk, a long computation)",
    ),
    "answers_in_part": (
        "answers were incomplete ({part!p} came on average): looks like a slow line, or a middle "
        "box that holds answers back",
        "see the bandwidth and middle boxes between here and the server",
    ),
    "answers_late": (
        "{server} counted {requests} meanwhile, and none was answered in time: looks like answers "
        "come late, or are lost on the way back",
        "see its load, and middle boxes; a longer --timeout distinguishes late from lost",
    ),
    # Connections that listen.
    "others_heard": (
        "others received data meanwhile: looks like {server} forgot these, or a middle box drops "
        "them silently",
        "see its error log, and idle timeouts of middle boxes",
    ),
    "nobody_heard": (
        "no connection received data meanwhile: looks like {server} had nothing to send, was "
        "stopped, or the path was down",
        "have the server send something more often (an event, a comment), or use a longer "
        "--silence",
    ),
    "cut_short": (
        "{loss}, after a part of it had come ({part!p} on average): looks like a middle box that "
        "cuts answers off, or a worker that ended while it wrote{when}",
        "see middle boxes between here and the server, and its error log",
    ),
    # Unknown.
    "too_few": ("{loss}{medians}{when}: too few to tell the cause", "{remedy}"),
    "unexplained": ("{loss}{medians}{when}: cause unknown", "{remedy}"),
}
#: The forms of a mechanism with several forms, or with another name.
_FORMS = {
    "backend_ended": ("backend_ended", "backend_restarted"),
    "burst": ("burst", "burst_of_living"),
    "box_reset": (
        "box_reset",
        "box_reset_by_count",
        "box_seems_reset",
        "box_reset_idle",
        "box_reset_while_open",
        "box_reset_while_counted",
        "box_forgot",
    ),
    "closed_at_once": ("closed_at_once", "gave_up_on_backend"),
    "idle_reuse": ("idle_reuse", "likely_reuse"),
    "idle_timeout": ("idle_timeout", "farewell"),
    "keepalive_off": ("keepalive_off", "http_1_0"),
    "never_accepted": ("never_accepted", "left_waiting"),
    "never_answered": ("never_answered", "never_answered_though_accepted"),
    "not_http": ("not_http", "no_longer_http"),
    "path_cut": ("no_route", "unacknowledged", "page_answered"),
    "request_limit": ("request_limit", "request_limit_of_some", "request_limit_or_age"),
    "reload": (
        "reload_by_processes",
        "reload_or_crash",
        "reload_by_counts",
        "reload_by_counters",
        "likely_reload",
    ),
    "server_ended": ("server_ended", "connects_refused", "page_never_again"),
    "server_stalled": (
        "server_stalled",
        "waited_for_something",
        "stood_still",
        "part_stood_still",
        "computing",
        "nobody_answered",
        "stopped_here",
    ),
    "suspended": ("suspended", "suspended_too_long"),
    "unheard": ("others_heard", "nobody_heard"),
    "worker_crash": (
        "worker_crash",
        "worker_crash_or_proxy",
        "workers_killed_for_memory",
    ),
    "worker_ended": ("worker_ended", "worker_or_backend_ended"),
}


def _code_by_form() -> dict[str, str]:
    """Each form -> the code of its diagnosis, in the order of the causes."""
    codes = {form: form for form in _CAUSES}
    for code, forms in _FORMS.items():
        for form in forms:
            codes[form] = code
    return codes


#: The codes of diagnoses.
CODES = tuple(dict.fromkeys(_code_by_form().values()))
# Values of fields in an explanation without a run, N for a number and T for a time; and those of
# single forms. A remedy that is made elsewhere is left out.
_UNSEEN = {
    "beside": "",
    "by_event": "",
    "no_reload": _NO_RELOAD,
    "or_stop": "",
    "loss": "connections ended",
    "were": "connections were",
    "connections": "connections",
    "server": "the server",
    "said": "with a message of the protocol",
    "limit": "a limit of nginx, or of a server like it",
    "timer": "that limit",
    "processes": "processes of asyncli's own, or with a client host",
    "statuses": "400 or more",
    "cut": "the client host had itself been silent",
    "connects": "connects",
    "segments": "TCP segments were",
    "way": _WAY_CUT,
    "whose": UNKNOWN_IDLE_TIMEOUT,
    "again": "some",
    "share": "a part of all",
    "part": "a part",
    "killed": "workers",
    "crashed": "a worker of it crashed or was killed",
    "ended": "some",
    "workers": "the",
    "kept": "some",
    "before": "some",
    "at_s": "some instant",
    "slots": "fewer",
    "most": "a part",
    "answered": "after different numbers of answers",
    "beats": NONE_ANSWERED,
    "waiting": "some",
    **dict.fromkeys(("requests", "asked", "cores", "gap_s"), "N"),
    **dict.fromkeys(("age", "idle", "for_s", "timeout_s"), "T"),
    **dict.fromkeys(
        (
            "likely",
            "when",
            "medians",
            "known",
            "configured",
            "counts",
            "of",
            "perhaps",
            "or_others",
            "or_lost",
            "up_to",
            "reasons",
        ),
        "",
    ),
    "remedy": "",
}
_UNSEEN_IN = {
    "broken_protocol": {
        "reasons": "the report says how",
        "rule": "the protocol, or --expect,",
    },
    "tls_error": {"reasons": "the report says how"},
    "answers_late": {"requests": "as many requests"},
    "worker_stalled": {"stopped": "some", "workers": "workers", "by": ""},
    "not_http": {"reasons": " after an answer that is no HTTP"},
    "box_idle_timeout": {"configured": "another time"},
}
# How the middle box of a mechanism ends connections; the others reset them.
_BOX_ENDS: dict[str, Ends] = {"silent_drop": "drops", "box_idle_timeout": "closes"}
_BELOW_A_SECOND = "less than 1 s"
# Losses that last no longer are told by one instant.
_ONE_MOMENT_S = 3.0
# From here on times are told in minutes and hours; below, in seconds, like configurations.
_IN_MINUTES_S = 600
_MOMENTS_SHOWN = 3
_FIELD = re.compile(r"\{(\w+)[^{}]*\}")
# The remedy of an unexplained cause.
_SEE_BY_CAUSE = {
    "reset": "see the server's error log, and firewalls between",
    "closed_idle": "see the server's idle timeout, and its free slots",
    "closed_awaiting": "see its error log; a reload or a crash of a worker does this",
    "closed_announced": "raise its request and age limits{longer_life}",
    "heartbeat_timeout": (
        "see the server's load, and middle boxes that drop idle connections silently"
    ),
}

# A broker ends the older of two connections with one id (MQTT 3.1.1, section 3.1.4); 3.1.1 has no
# message for that.
_SEE_BROKER = (
    "see its log; another client may use the same ids (choose another --mqtt-id or --seed)"
)


# The processes of which the kernel's victims are some.
_VICTIMS_AMONG = {
    "server": "of its own",
    "group": "of its control group",
    "host": "of its host",
}


def describe_crash(ended: int, workers: int) -> str:
    """``a worker of it crashed or was killed, 1 of 2``; without numbers of a single worker."""
    crashed = "a worker of it crashed or was killed"
    if ended > 1:
        crashed = "workers of it crashed or were killed"
    if workers > 1:
        crashed += f", {ended} of {workers}"
    return crashed


def _victims(number: int, among: str) -> str:
    """``2 processes of its control group``: what the kernel killed for lack of memory."""
    return f"{format_many(number, 'process')} {_VICTIMS_AMONG[among]}"


def perhaps_for_memory(number: int, among: str) -> str:
    """That the kernel killed ``number`` processes meanwhile, which may be those that ended; "" for
    none.
    """
    if not number:
        return ""
    killed = _victims(number, among)
    return f", perhaps for lack of memory: the kernel killed {killed} meanwhile"


def by_event(number: int, later_s: float) -> dict[str, Any]:
    """That workers ended which an event's command, ``later_s`` before, had left for later, and what
    to do about it.
    """
    return {
        "by_event": f", {format_duration(later_s)} after event {number} had others started beside "
        "them",
        "no_reload": "have earlier workers end sooner (nginx: worker_shutdown_timeout), or use a "
        "longer --keepalive: what ends within half of it and --timeout is the event's",
    }


def others_took(count: int) -> dict[str, Any]:
    """That other clients had ``count`` connections meanwhile, and what to do about it; nothing for
    none.
    """
    if not count:
        return {"beside": "", "or_stop": ""}
    return {
        "beside": f", and other clients held about {format_count(count)}",
        "or_stop": "; or stop the other clients",
    }


def or_others(number: int, among: str) -> str:
    """That the ``number`` processes that the kernel killed may be others than those that ended."""
    killed = _victims(number, among)
    return (
        f"; it killed {killed}, which may be other programs, and then a crash, a shutdown or a "
        "reload fits too"
    )


def remedy_of_unexplained(protocol: str, cause: str, server: str = "") -> str:
    if protocol == "mqtt" and cause in ("closed_idle", "closed_awaiting", "reset"):
        return _SEE_BROKER
    return _SEE_BY_CAUSE.get(cause, "see the kernel's log").format_map(settings(server))


class LossDetails(msgspec.Struct, frozen=True):
    """The lost connections of a sentence. ``age``, ``idle``: ranges; ``medians``: of both (s);
    ``listens``: they send no heartbeats.
    """

    cause: str
    count: int
    age: str
    idle: str
    medians: tuple[float, float] | None
    since_s: float
    to_s: float
    listens: bool = False
    protocol: str = "http"

    def fill(self, words: Words) -> Words:
        """``words`` with these details."""
        when = f", from {format_clock(self.since_s)} to {format_clock(self.to_s)}"
        if self.to_s - self.since_s <= _ONE_MOMENT_S:
            when = f", at {format_clock(self.since_s)}"
        medians = ""
        if self.medians is not None:
            age, idle = map(_whole_seconds, self.medians)
            medians = f"; median age {age}, idle for {idle}"
        connections = format_many(self.count, "connection")
        were = f"{connections} were"
        if self.count == 1:
            were = f"{connections} was"
        loss = describe_loss(self.cause, self.count, self.protocol)
        evidence = words.evidence.format(
            loss=loss,
            were=were,
            connections=connections,
            age=self.age,
            idle=self.idle,
            medians=medians,
            when=when,
        )
        remedy = words.remedy
        parts = _LISTENING if self.listens else _WITH_BEATS
        for part, text in parts.items():
            remedy = remedy.replace(part, text)
        return Words(evidence, remedy)


#: Parts of remedies that only connections with heartbeats have, and those of connections that
#: listen.
_WITH_BEATS = {
    "{sends}": ", send heartbeats more often (--keepalive below twice that time)",
    "{or_sends}": ", or send heartbeats more often: --keepalive below twice that time",
    "{or_first}": ", or send the first heartbeat at once (--first-beat now)",
}
_LISTENING = {"{sends}": "", "{or_sends}": ", or have the server send more often", "{or_first}": ""}
# Filled by :class:`LossDetails`.
_LATER = {
    name: f"{{{name}}}"
    for name in (
        "loss",
        "were",
        "connections",
        "age",
        "idle",
        "medians",
        "when",
        "sends",
        "or_sends",
        "or_first",
    )
}


def meanings(code: str) -> list[Words]:
    """The words of each form of the diagnosis ``code``, without a run."""
    words = []
    for form in _FORMS.get(code, (code,)):
        words.append(unseen(_CAUSES[form], **_UNSEEN_IN.get(form, {})))
    return words


def unseen(template: tuple[str, str], **fields: str) -> Words:
    """``template`` without a run: with general words in place of its fields. Raises KeyError for a
    field that has none.
    """
    in_general = {
        **_UNSEEN,
        **settings(""),
        **{part.strip("{}"): text for part, text in _WITH_BEATS.items()},
        **fields,
    }

    def general_word(field: re.Match[str]) -> str:
        return in_general[field[1]]

    evidence, remedy = template
    return Words(
        _FIELD.sub(general_word, evidence),
        _FIELD.sub(general_word, remedy).removeprefix("; "),
    )


def words_of(form: str, certain: bool, name: str = "", **seen: Any) -> Words:
    """The words of the mechanism ``form``, with what by default ends connections so that were idle
    from ``low`` to ``high`` (s), and with settings of the server of this ``name``.
    """
    fields: dict[str, Any] = {
        **_LATER,
        **settings(name),
        "likely": "" if certain else "looks like ",
        "known": "",
        "by_event": "",
        "no_reload": _NO_RELOAD,
    }
    if "low" in seen:
        box = known_idle(seen["low"], seen["high"], _BOX_ENDS.get(form, "resets"))
        if box:
            fields["known"] = f" ({box})"
    for field, value in seen.items():
        # A remedy has fields of its own, which are filled later.
        if isinstance(value, str) and field != "remedy":
            fields[field] = plain_braces(value)
        else:
            fields[field] = value
    return fill(_CAUSES[form], fields)


def way_cut(answering: int) -> str:
    """What is cut where nothing was acknowledged; ``answering``: how many sockets of the server had
    sent what nobody acknowledged either.
    """
    if not answering:
        return _WAY_CUT
    return (
        f", but the server answered: {format_many(answering, 'socket')} of it had sent what nobody"
        " acknowledged: looks like a packet filter or another box drops what comes back"
    )


def in_seconds(low: float, high: float | None = None) -> str:
    """``75 s``, ``75-77 s``; ``1 h to 1 h 2 min``: in seconds below 10 min, like configurations."""
    if high is None:
        high = low
    if round(high) >= _IN_MINUTES_S:
        first = format_duration(round(low))
        last = format_duration(round(high))
        return first if first == last else f"{first} to {last}"
    if round(low) == round(high):
        return f"{low:.0f} s"
    return f"{low:.0f}-{high:.0f} s"


def age_or_idle(low: float, high: float) -> str:
    """A range of recorded ages or idle times: in whole seconds, so 0 is any time below 1 s."""
    if high < 1:
        return _BELOW_A_SECOND
    return in_seconds(low, high)


def _whole_seconds(seconds: float) -> str:
    if seconds < 1:
        return _BELOW_A_SECOND
    return format_duration(seconds)


def limit(
    directive: str, low: float, high: float, configured: float | None, server: str, certain: bool
) -> Words:
    """A likely limit from ``low`` to ``high``. ``server``: not nginx but this one; ``configured``:
    other value in nginx.conf.
    """
    default = default_of(directive, low, high)
    if server:
        whose = f"a limit of {server}, such as nginx's {directive}"
    elif default:
        whose = f"nginx {directive} ({default})"
    else:
        whose = f"nginx {directive}"
    if configured is not None:
        whose += (
            f", though nginx.conf says {_value(directive, configured)}: it was changed since, or "
            "a middle box did it"
        )
    return words_of(
        directive,
        certain,
        limit=whose,
        requests=_requests(low, high),
        timer=timer_of(directive, server),
    )


def configured_limit(directive: str, value: float, certain: bool) -> Words:
    """A limit of nginx at the value in nginx.conf."""
    why = f"nginx {directive} (nginx.conf says {_value(directive, value)})"
    return words_of(
        directive, certain, limit=why, requests=_requests(value, value), timer=timer_of(directive)
    )


def _requests(low: float, high: float) -> str:
    if low == high:
        return format_count(low)
    return f"{format_count(low)}-{format_count(high)}"


def _value(directive: str, value: float) -> str:
    if directive == "keepalive_requests":
        return format_count(value)
    if directive == "keepalive_time":
        return format_duration(value)
    return in_seconds(value)


def at_moments(
    why: Words, instants_s: Sequence[float], lasted_s: float, count: int, held: float
) -> Words:
    """``why`` with the moments, and the length and share of the largest."""
    share = f"{format_count(count)} of {format_count(max(held, count))} held"
    if len(instants_s) == 1:
        within = format_duration(max(1.0, lasted_s))
        when = f"at {format_clock(instants_s[0])} within {within} ({share}; ages {{age}})"
    else:
        moments = _first_moments(instants_s)
        when = f"at {len(instants_s)} moments ({moments}; ages {{age}}); of the largest, {share}"
    return Words(f"{{loss}} {when}: {why.evidence}", why.remedy)


def _first_moments(instants_s: Sequence[float]) -> str:
    """``0:10, 0:20, 0:30 and 4 more``"""
    shown = ", ".join(format_clock(instant_s) for instant_s in instants_s[:_MOMENTS_SHOWN])
    others = len(instants_s) - _MOMENTS_SHOWN
    if others > 0:
        return f"{shown} and {others} more"
    return shown


def after_listener(why: Words, since_s: float, events: Sequence[EventWords]) -> Words:
    """``why``, of a server at whose ports nothing listened any more ``since_s`` (run clock), which
    began in the time of ``events`` of the plan: what ended the connections began then.
    """
    evidence = f"{why.evidence}; nothing had listened at its ports since {format_clock(since_s)}"
    if not events:
        return Words(evidence, why.remedy)
    evidence += f", which began {in_the_time_of(events)}"
    return Words(evidence, commands_first(events, why.remedy))


def after_mark(why: Words, mark: MarkWords) -> Words:
    """``why``, of what was first seen just after a mark of the user's."""
    return Words(f"{why.evidence}; that was {plain_braces(near(mark))}", why.remedy)


def or_lifetime(why: Words) -> Words:
    """``why``, an idle timeout, for connections whose ages fit an age limit as well."""
    evidence = f"{why.evidence}; an age limit fits too, because all ended at age {{age}}"
    return Words(
        evidence,
        f"{why.remedy}; with a --keepalive below twice that time only an age limit ends them",
    )


def or_no_slot(why: Words, most: int, asked: int) -> Words:
    """``why``, an idle timeout, of a server that closed only at the ``most`` that it held of those
    ``asked`` for.
    """
    held = f"it never held more than {format_count(most)} of the {format_count(asked)} asked for"
    evidence = (
        f"{why.evidence}; a lack of free slots fits too, for which a server closes what was idle "
        f"for longest ({held})"
    )
    return Words(evidence, f"{why.remedy}; with fewer --connections only a timeout ends them")


def answered_before(fewest: int, most: int) -> str:
    """``after 0 to 5 answers``: how many answers lost connections had before they ended."""
    if most < 1:
        return "without any answer"
    if fewest == most:
        return f"after {format_many(most, 'answer')} each"
    return f"after {format_count(fewest)} to {format_count(most)} answers"


def or_age(why: Words) -> Words:
    """``why``, a limit of requests, for connections that sent theirs at one pace and so ended at
    one age.
    """
    evidence = f"{why.evidence}; an age limit fits too, because all ended at one age"
    return Words(
        evidence,
        f"{why.remedy}; with another --keepalive either the number of requests or the age stays",
    )


def or_event(why: Words) -> Words:
    """``why``, a limit of requests, for connections that sent them in step."""
    evidence = (
        f"{why.evidence}; they sent their requests in step, so an event at that moment fits too"
    )
    return Words(evidence, f"{why.remedy}; a slower ramp (--ramp) tells a limit from an event")


def unheard(why: Words, silence_s: float) -> Words:
    """``why`` with the longest silence of connections that listen."""
    return Words(
        f"{{were}} ended after receiving nothing for {format_duration(silence_s)}{{when}}: "
        f"{why.evidence}",
        why.remedy,
    )


def unanswered(why: Words, timeout_s: float, times: int = 1, every_s: float | None = None) -> Words:
    """``why`` with the timeout of the heartbeats, and how many ``times`` it happened, if regularly
    ``every_s``.
    """
    several = ""
    if times > 1:
        several = f", {times} times"
    if every_s is not None:
        several = f"{several}, about every {format_duration(every_s)}"
    lost = f"{{loss}} ({format_duration(timeout_s)})"
    return Words(f"{lost}; {why.evidence}{several}{{when}}", why.remedy)


def begun_with(
    why: Words, events: Sequence[EventWords], mark: MarkWords | None, times: int, code: str
) -> Words:
    """``why``, of a silence of these connections that began in the time of ``events`` of the plan,
    and just after a ``mark`` of the user's; of several ``times`` the first did.
    """
    silence = "it" if times == 1 else "the first"
    evidence = why.evidence
    if events:
        evidence += f"; {silence} began {in_the_time_of(events)}"
    if mark is not None:
        evidence += f"; {silence} began {plain_braces(near(mark))}"
    if code == "path_cut" and see_commands(events):
        return Words(evidence, f"{why.remedy}; {see_commands(events)}")
    return Words(evidence, commands_first(events, why.remedy))
