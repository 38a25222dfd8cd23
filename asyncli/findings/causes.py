"""Why connections were lost: the sentence and the remedy of each mechanism of :mod:`asyncli.analysis.losses`.

``{befell}``, ``{were}``, ``{age}``, ``{idle}``, ``{medians}`` and ``{when}`` are places for what :class:`Dead` knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncli.findings import Words
from asyncli.findings.losses import befell, cut_off, plain_braces
from asyncli.units import format_clock, format_count, format_duration, format_many

#: Idle timeouts (s) that are someone's default, and whose: each closes, resets or forgets what was idle for so long.
KNOWN_IDLE_S = {
    5: "the keep-alive timeout of Apache and Node.js", 60: "the idle timeout of AWS's application and classic load balancers",
    65: "nginx's packaged keepalive_timeout", 75: "nginx's default keepalive_timeout",
    240: "the idle timeout of Azure's load balancer", 350: "the idle timeout of AWS's network load balancer",
    600: "the idle timeout of GCP's firewalls and load balancers",
}  # fmt: skip
# What nginx's limits are by default.
_DEFAULTS = {
    "keepalive_timeout": ((75, "75 s by default"), (65, "65 s in its packages")),
    "client_header_timeout": ((60, "60 s by default"),),
    "keepalive_requests": ((1000, "1,000 by default"), (100, "100 by default before 1.19.10")),
    "keepalive_time": ((3600, "1 h by default"),),
}
_MORE = {
    "keepalive_timeout": "raise keepalive_timeout in nginx.conf, or beat more often: --keepalive below twice that time",
    "client_header_timeout": "raise client_header_timeout in nginx.conf, or send the first heartbeat at once (--first-beat now)",
    "keepalive_requests": "raise keepalive_requests in nginx.conf, or beat less often (--keepalive)",
    "keepalive_time": "raise keepalive_time in nginx.conf (1 h by default), or hold for less",
}
# What the dead of a limit have in common.
_SHARED = {
    "keepalive_timeout": "{befell}, {idle} after their last answer",
    "keepalive_time": "{befell} at age {age}, at their next heartbeat",
    "client_header_timeout": "{befell}, {idle} after they were opened and before their first request",
}
_BEAT_OFTENER = "raise that timeout, or beat more often: --keepalive below twice that time"
_ROOM = "raise worker_connections in nginx.conf: each worker needs 1.1 times its share"
_CRASH = "see its error log ('worker process ... exited on signal') and the kernel's"
_BOX = "see firewalls and load balancers between here and the server"
_WAY = "see routes, firewalls and links between here and the server"
_NO_RELOAD = "do not reload it while you measure; or see who did"
_UNEXPLAINED = {
    "reset": "see the server's error log, and firewalls between",
    "closed_idle": "see the server's idle timeout, and its free slots",
    "closed_awaiting": "see its error log; a reload or a crash of a worker does this",
    "closed_announced": "raise its request and age limits (nginx: keepalive_requests, keepalive_time)",
    "heartbeat_timeout": "see the server's load, and middle boxes that drop idle connections without a word",
}


class Dead(msgspec.Struct, frozen=True):
    """Those that a sentence is about. ``age``, ``idle``: from the least to the greatest; ``medians``: of both (s)."""

    cause: str
    count: int
    age: str
    idle: str
    medians: tuple[float, float] | None
    since_s: float
    to_s: float

    def into(self, words: Words) -> Words:
        when = f", from {format_clock(self.since_s)} to {format_clock(self.to_s)}"
        if self.to_s - self.since_s <= 3.0:
            when = f", at {format_clock(self.since_s)}"
        medians = ""
        if self.medians is not None:
            medians = f"; median age {format_duration(self.medians[0])}, idle for {format_duration(self.medians[1])}"
        were = f"{format_many(self.count, 'connection')} {'was' if self.count == 1 else 'were'}"
        evidence = words.evidence.format(
            befell=befell(self.cause, self.count), were=were, age=self.age, idle=self.idle, medians=medians, when=when
        )
        return Words(evidence, words.remedy)


def in_seconds(low: float, high: float | None = None) -> str:
    """``75 s``, ``75-77 s``; ``1 h to 1 h 2 min``: times are told in seconds below 10 min, as in configurations (75 s, 350 s)."""
    high = low if high is None else high
    if round(high) >= 600:
        first, last = format_duration(round(low)), format_duration(round(high))
        return first if first == last else f"{first} to {last}"
    return f"{low:.0f} s" if round(low) == round(high) else f"{low:.0f}-{high:.0f} s"


def known_idle(low: float, high: float) -> str:
    """``" (the idle timeout of ...)"``: whose default an idle timeout between these times is; "" when nobody's that is known."""
    return next((f" ({name})" for seconds, name in KNOWN_IDLE_S.items() if low - 1 <= seconds <= high + 1), "")


def default_of(directive: str, low: float, high: float) -> str:
    """``75 s by default``, where nginx's ``directive`` is that by default or as it is packaged; "" where it is not."""
    slack = 0 if directive == "keepalive_requests" else 1
    return next((words for value, words in _DEFAULTS[directive] if low - slack <= value <= high + slack), "")


# -- what the run itself knows


def generator_lost(known: Words) -> Words:
    """``known``: of :func:`asyncli.findings.losses.lost_with`."""
    return Words(f"{{were}} lost with {plain_braces(known.evidence)}", known.remedy)


def not_http(answered_before: int) -> Words:
    if not answered_before:
        return Words("{befell}{medians}{when}", "see that the URL names an HTTP server")
    return Words(
        "{befell}{medians}{when}" + f"; until then {format_count(answered_before)} heartbeats had been answered with HTTP",
        "see what took the server's place then: a box on the way (a portal, TLS), or another program on its port",
    )


def http_error(statuses: Sequence[int]) -> Words:
    return Words(
        "{befell} after an error as answer " + f"(HTTP {', '.join(map(str, statuses))})" + "{when}",
        "see the server's error log for why it answers so, or aim at a path that it answers with 200",
    )


def suspended(for_s: float, at_s: float, nginx_timeout_s: float | None) -> Words:
    why = "the server or a box on the way had given them up meanwhile"
    if nginx_timeout_s is not None:
        why = f"nginx keepalive_timeout (nginx.conf says {format_duration(nginx_timeout_s)}) went by meanwhile"
    return Words(
        "{befell} after this machine had been suspended for "
        f"{format_duration(round(for_s, 1))}, at {format_clock(at_s)}, and had not been heard of since: {why}",
        "keep this machine awake: systemd-inhibit asyncli ...",
    )


def client_cut(timeout_s: float, hosts: Sequence[tuple[str, float]], until_s: float) -> Words:
    said = cut_off(hosts, until_s)
    return Words(f"{{befell}} ({format_duration(timeout_s)}): {plain_braces(said.evidence)}", said.remedy)


# -- timers and limits


def keepalive_off(configured: str) -> Words:
    off = f"keep-alive is off (nginx.conf says {configured})" if configured else "looks like keep-alive is off"
    return Words(
        f"{{befell}} after their first request each: {off}{{when}}",
        "switch keep-alive on: keepalive_timeout and keepalive_requests well above 0 in nginx.conf",
    )


def nginx_limit(directive: str, configured: float, certain: bool) -> Words:
    """What a limit of nginx ended at the value that nginx.conf has."""
    likely = "" if certain else "looks like "
    shared = _shared(directive, configured, configured)
    return Words(
        f"{shared}: {likely}nginx {directive} (nginx.conf says {_value(directive, configured)}){{when}}", _MORE[directive]
    )


def likely_limit(directive: str, low: float, high: float, server: str, configured: float | None) -> Words:
    """What looks like a limit of nginx; ``server``: what it is called, "nginx" or "" where it may be one; ``configured``: what
    nginx.conf says instead.
    """
    default = default_of(directive, low, high)
    why = f"nginx {directive}{f' ({default})' if default else ''}"
    if server not in ("", "nginx"):
        why = f"a limit of {plain_braces(server)}, such as nginx's {directive}"
    if configured is not None:
        why += f", though nginx.conf says {_value(directive, configured)}: it was changed since, or another on the way did it"
    return Words(f"{_shared(directive, low, high)}: looks like {why}{{when}}", _MORE[directive])


def _shared(directive: str, low: float, high: float) -> str:
    if directive != "keepalive_requests":
        return _SHARED[directive]
    requests = format_count(low) if low == high else f"{format_count(low)}-{format_count(high)}"
    return f"{{befell}} after {requests} requests each, at age {{age}}"


def _value(directive: str, value: float) -> str:
    if directive == "keepalive_requests":
        return format_count(value)
    return format_duration(value) if directive == "keepalive_time" else in_seconds(value)


def idle_timeout(low: float, high: float, farewell: bool) -> Words:
    whose = known_idle(low, high).strip(" ()") or "an idle timeout of the server or of a box on the way"
    why = "an idle timeout that says farewell (HTTP 408)" if farewell else whose
    return Words(f"{{befell}}, {{idle}} after their last answer: looks like {why}{{when}}", _BEAT_OFTENER)


def box_idle_timeout(low: float, high: float, configured_s: float) -> Words:
    return Words(
        f"{{befell}}, {{idle}} after their last answer: nginx.conf says keepalive_timeout {in_seconds(configured_s)}: it was "
        f"changed since, or it looks like a box on the way{known_idle(low, high)}{{when}}",
        _BEAT_OFTENER,
    )


def box_reset_idle(low: float, high: float, kept: int) -> Words:
    """A server closes in order: "Timed out keep-alive connections are closed normally" (reset_timedout_connection, nginx.org)."""
    counted = f"; the server still counts {format_count(kept)} of them as open, so it was not told" if kept else ""
    return Words(
        "{befell}, {idle} after their last answer: a server closes such connections in order, so it looks like a box on the way"
        f"{known_idle(low, high)}{counted}{{when}}",
        _BEAT_OFTENER,
    )


def box_forgot(idle_s: float, gap_s: float) -> Words:
    return Words(
        f"{{befell}}, all of them idle for {in_seconds(idle_s)} or longer before (heartbeats are 1 to {gap_s:.0f} s apart): "
        f"looks like a box on the way that forgets idle connections{known_idle(idle_s, idle_s)}{{when}}",
        _BEAT_OFTENER,
    )


def lifetime() -> Words:
    return Words(
        "{befell} at age {age}, whatever their idle time: looks like a limit of age of the server's or of a box on the way{when}",
        "raise that limit, or hold for less",
    )


def closed_at_once() -> Words:
    return Words(
        "{befell}, at once and without any answer: whoever accepted them does not serve them (nginx: return 444, or no free "
        "slot; a box on the way without a server behind it){when}",
        "see the server's error log, and its limits on connections and descriptors",
    )


# -- moments, and want of room


def idle_reuse(slots: float, asked: int, certain: bool) -> Words:
    verb = "nginx ran out of free slots and closed" if certain else "looks like nginx ran short of free slots and closed"
    return Words(
        f"{{befell}}, {{idle}} after their last answer, while others opened: {verb} idle connections to reuse theirs "
        "('worker_connections are not enough, reusing connections' in its error log; nginx.conf gives "
        f"{format_count(slots)} in all, {format_count(asked)} were asked for){{when}}",
        _ROOM,
    )


def likely_reuse(most: int, asked: int) -> Words:
    return Words(
        "{befell}, {idle} after their last answer, while others opened: looks like the server has no room for more and closes "
        f"idle connections to make some (it never held more than {format_count(most)} of the {format_count(asked)} asked "
        "for; nginx: 'worker_connections are not enough, reusing connections' in its error log){when}",
        _ROOM,
    )


def at_moments(why: Words, instants_s: Sequence[float], lasted_s: float, count: int, held: float) -> Words:
    """``why``, of what ended at these moments; of the largest, how long it lasted and how many of how many ended."""
    share = f"{format_count(count)} of {format_count(max(held, count))} held"
    if len(instants_s) == 1:
        when = f"at {format_clock(instants_s[0])} within {format_duration(max(1.0, lasted_s))} ({share}; of ages {{age}})"
    else:
        first = ", ".join(format_clock(one) for one in instants_s[:3])
        more = f" and {len(instants_s) - 3} more" if len(instants_s) > 3 else ""
        when = f"at {len(instants_s)} moments ({first}{more}; of ages {{age}}); of the largest, {share}"
    return Words(f"{{befell}} {when}: {why.evidence}", why.remedy)


def server_ended(server: str) -> Words:
    return Words(
        f"{server} ended or was killed: none of its processes was left", "see its error log and the kernel's for who ended it"
    )


def server_seems_ended(server: str, refused: bool) -> Words:
    how = "connects were refused from then on" if refused else "its status page answered before, and never again"
    return Words(f"looks like {server} ended: {how}", "see its error log")


def server_restarted(server: str) -> Words:
    return Words(
        f"{server} was restarted: other processes took the place of those that were there",
        "see its log and the service manager's for who restarted it",
    )


def box_reset_all(server: str, kept: int) -> Words:
    return Words(f"{_still_counts(server, kept)}: a box on the way reset them, and did not tell it", _BOX)


def box_seems_reset() -> Words:
    return Words("looks like a box on the way that was restarted or lost its table of connections", _BOX)


def worker_crash(server: str, kept: int, workers: int, certain: bool) -> Words:
    likely, of = "" if certain else "looks like ", f", one of {workers}" if workers > 1 else ""
    return Words(f"{_still_counts(server, kept)}: {likely}a worker of it crashed or was killed{of}", _CRASH)


def _still_counts(server: str, kept: int) -> str:
    return f"{server}'s own count of connections still holds {format_count(kept)} of them"


def worker_ended(server: str, ended: int, workers: int, certain: bool) -> Words:
    likely = "" if certain else "looks like "
    return Words(
        f"{likely}{format_count(ended)} of {workers} workers of {server} ended with its connections: a crash, a shutdown, or it "
        "was killed",
        _CRASH,
    )


def reload_by_processes(server: str, ended: int) -> Words:
    return Words(f"{server} was reloaded: {ended} of its processes ended and others took their place", _NO_RELOAD)


def reload_by_counts(server: str, certain: bool) -> Words:
    what = f"{server} was reloaded" if certain else f"looks like a reload of {server}"
    return Words(
        f"{what}: it went on counting, let go of them all in good order, and ended our status connection with them", _NO_RELOAD
    )


def likely_reload(server: str, goes_on: bool) -> Words:
    if goes_on:
        return Words(f"looks like a reload of {server}, which lets old workers close what they hold", _NO_RELOAD)
    return Words(f"looks like a reload, a restart or the end of {server}", "see its log of that moment")


def unknown_moment() -> Words:
    return Words("what ended them all at one moment, nothing here says", "see the server's log of that moment")


# -- heartbeats without a whole answer


def unanswered(why: Words, timeout_s: float) -> Words:
    return Words(f"{{befell}} ({format_duration(timeout_s)}): {why.evidence}{{when}}", why.remedy)


def never_accepted(server: str, others: bool) -> Words:
    met = "others were answered, and these never" if others else "nobody was answered"
    return Words(
        f"{met}: looks like {server} has not accepted them (its listen queue holds them)",
        "see whether it accepts (ss -ltn: Recv-Q); give it more processes, threads or slots (Apache: MaxRequestWorkers; HAProxy: "
        "maxconn)",
    )


def silent_drop(idle_s: float, server: str, kept: int) -> Words:
    counts = f", and {server} still counts {format_count(kept)} of them as open" if kept else ""
    return Words(
        f"all of them had been idle for {in_seconds(idle_s)} or longer, while others were answered{counts}: "
        f"{'' if kept else 'looks like '}a box on the way drops idle connections without a word{known_idle(idle_s, idle_s + 1)}",
        "beat more often than that (--keepalive below twice that time), or raise its timeout",
    )


def packets_lost(share: float) -> Words:
    return Words(
        f"others were answered, but {share:.0%} of this host's TCP segments were sent again: packets were lost on the way",
        "see links, cables and firewalls between (ip -s link), and the server's own counters",
    )


def server_slow(server: str, up_to_s: float) -> Words:
    return Words(
        f"others were answered late, up to {format_duration(up_to_s)}: looks like {server} or the way to it is overloaded",
        "ask less of it (--connections, --keepalive), or wait longer (--timeout)",
    )


def worker_stalled(server: str, workers: int) -> Words:
    return Words(
        f"others were answered: looks like a worker of {server}, one of {workers}, stands still with its connections",
        "see what its workers do (ps, its error log)",
    )


def no_route(connects: int) -> Words:
    return Words(
        f"nobody was answered, and {format_many(connects, 'connect')} found no route or were forbidden: the way to it was cut",
        _WAY,
    )


def unacknowledged(segments: int) -> Words:
    return Words(
        f"nobody was answered, and nothing that was sent was acknowledged ({format_many(segments, 'TCP segment')} sent again): "
        "looks like the way to it was cut, or its host was down",
        _WAY,
    )


def page_answered(counted_none: bool) -> Words:
    counted = " and counted no request" if counted_none else ""
    return Words(
        f"nobody was answered, though the server's status page answered{counted}: looks like the way to it was cut", _WAY
    )


def server_stalled(server: str) -> Words:
    return Words(
        f"{server} stood still: it answered nobody, its status page neither, and its processes used no CPU",
        "see who stopped it (SIGSTOP, a debugger, a frozen cgroup)",
    )


def nobody_answered(server: str) -> Words:
    return Words(
        f"nobody was answered meanwhile: looks like {server} stood still, or the way to it was cut",
        "see whether it runs, and routes and firewalls between",
    )


def answers_in_part(part: float) -> Words:
    return Words(
        f"of each answer only a part came ({part:.0%} on the average): looks like a slow line, or a box on the way that "
        "holds answers back",
        "see the bandwidth and the boxes between here and the server",
    )


def answers_late(server: str, requests: int) -> Words:
    return Words(
        f"{server} counted {format_many(requests, 'request')} meanwhile, and none was answered in time: looks like answers come "
        "late, or are lost on the way back",
        "see its load, and boxes on the way; a longer --timeout tells late from lost",
    )


def cut_short(part: float) -> Words:
    return Words(
        f"{{befell}}, after a part of it had come ({part:.0%} on the average): looks like a box on the way that breaks answers "
        "off, or a worker that ended while it wrote{when}",
        "see the boxes between here and the server, and its error log",
    )


def unexplained(cause: str, few: bool) -> Words:
    why = "too few to tell why" if few else "this fits nothing that asyncli knows"
    return Words(f"{{befell}}{{medians}}{{when}}: {why}", _UNEXPLAINED.get(cause, "see the kernel's log"))
