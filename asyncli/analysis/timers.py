"""Limits and timers that end connections one by one: each leaves a narrow mode in one of age, idle time and request number.

The limits of nginx come first, compared with what nginx.conf says where that was read; then what looks like one. Sources:
ngx_http_update_location_config of nginx 1.22 (keepalive_timeout 0, then keepalive_requests, then keepalive_time decide on
``Connection: close``) and ngx_http_special_response_handler (errors after which it closes).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable

from asyncli.analysis.mortality import (
    FEWEST,
    NARROW,
    NARROW_SHARE,
    Case,
    Cell,
    Share,
    Words,
    accident,
    as_configured,
    in_seconds,
    is_timer,
    left,
    mode,
    narrow,
    tells,
    timer_window,
    within,
)
from asyncli.analysis.ourloss import lost_with
from asyncli.core.histogram import Histogram, bounds, bucket
from asyncli.findings.losses import befell
from asyncli.units import format_count, format_duration, format_many

# Gaps shorter than this (s) are nearly of one length (they are uniform in [1, gap]): ages then say what request numbers say.
_REGULAR_S = 1.5
# That nearly all of so many gaps met at random are this long: a likelihood below it is no accident.
_NO_ACCIDENT = 1e-3
# Older than this (s) by its deaths' spread, a fleet was not opened at one moment, and a common age means something.
_SPREAD_S = 4.0

#: Idle timeouts (s) that are someone's default, and whose: each closes, resets or forgets what was idle for so long.
KNOWN_IDLE_S = {
    5: "the keep-alive timeout of Apache and Node.js", 60: "the idle timeout of AWS's application and classic load balancers",
    65: "nginx's packaged keepalive_timeout", 75: "nginx's default keepalive_timeout",
    240: "the idle timeout of Azure's load balancer", 350: "the idle timeout of AWS's network load balancer",
    600: "the idle timeout of GCP's firewalls and load balancers",
}  # fmt: skip
_DEFAULT_TIME_S = 3600
_NGINX_S = {65: "65 s in its packages", 75: "75 s by default"}

_MORE_REQUESTS = "raise keepalive_requests in nginx.conf, or beat less often (--keepalive)"
_MORE_TIME = "raise keepalive_time in nginx.conf (1 h by default), or hold for less"
_MORE_IDLE = "raise keepalive_timeout in nginx.conf, or beat more often: --keepalive below twice that time"
_BEAT_OFTENER = "raise that timeout, or beat more often: --keepalive below twice that time"


def ours(case: Case) -> None:
    """What was lost with a worker of ours, and what is no HTTP: the cause says it all."""
    known = lost_with(case.findings, "asyncli's")

    def lost(share: Share) -> tuple[str, str]:
        return (
            f"{format_many(share.count, 'connection')} {'was' if share.count == 1 else 'were'} lost with {known.what}",
            known.remedy,
        )

    case.take_all(case.of("generator_lost"), "generator_lost", lost, True)
    cells = case.of("protocol_error")
    before = sum(tick.answered for _, tick in case.between(-math.inf, min(cell.from_s for cell in cells))) if cells else 0
    case.take_all(cells, "not_http", _not_http(before), True)


def _not_http(before: int) -> Words:
    """Something else than HTTP, and how many answers had been right before."""

    def words(share: Share) -> tuple[str, str]:
        evidence = f"{befell('protocol_error', share.count)}{share.medians()}{share.when()}"
        if not before:
            return evidence, "see that the URL names an HTTP server"
        evidence += f"; until then {format_count(before)} heartbeats had been answered with HTTP"
        return evidence, "see what took the server's place then: a box on the way (a portal, TLS), or another program on its port"

    return words


def errors(case: Case) -> None:
    """An error as answer, and the connection closed with it: nearly each error comes with a close."""
    of_cell = [(cell, _bad(cell)) for cell in case.of("closed_announced")]
    answers = sum(sum(bad.values()) for _, bad in of_cell)
    both = sum(min(cell.left, sum(bad.values())) for cell, bad in of_cell)
    seen = {status for _, bad in of_cell for status in bad}
    # Errors of another kind than nginx closes after may only have come in the same seconds: they must be many of the closes.
    enough = 1 if case.witness.is_nginx and seen <= _NGINX_CLOSES_AFTER else 0.5 * sum(cell.left for cell, _ in of_cell)
    if both < max(1.0, enough, 0.9 * answers):
        return
    listed = ", ".join(map(str, sorted(seen)))

    def words(share: Share) -> tuple[str, str]:
        return (
            f"{befell('closed_announced', share.count)} after an error as answer (HTTP {listed}){share.when()}",
            "see the server's error log for why it answers so, or aim at a path that it answers with 200",
        )

    certain = both >= FEWEST and (enough == 1 or both >= 0.9 * sum(cell.left for cell, _ in of_cell))
    for cell, bad in of_cell:
        case.take(cell, "http_error", words, certain, count=sum(bad.values()))


# What nginx answers with and closes, by itself (ngx_http_special_response_handler); 494 to 497 go out as 400.
_NGINX_CLOSES_AFTER = frozenset({400, 413, 414, 500, 501})


def _bad(cell: Cell) -> dict[int, int]:
    return {status: count for status, count in cell.tick.by_status.items() if status >= 400}


def keepalive_off(case: Case) -> None:
    """Keep-alive is off by nginx.conf: every connection ends with its first answer."""
    timeout, requests = case.configured("keepalive_timeout"), case.configured("keepalive_requests")
    if timeout == 0:
        _off(case, "keep-alive is off (nginx.conf says keepalive_timeout 0)", True)
    elif requests is not None and requests <= 1:
        _off(case, f"keep-alive is off (nginx.conf says keepalive_requests {format_count(requests)})", True)


def likely_keepalive_off(case: Case) -> None:
    """The same where no configuration says so: most of what was opened ended with its first answer."""
    requests = case.all_of("closed_announced").requests
    first = within(requests, 0, 1)
    if first >= max(FEWEST, 0.9 * requests.count, 0.5 * case.opened):
        _off(case, "looks like keep-alive is off", False)


def _off(case: Case, said: str, certain: bool) -> None:
    def words(share: Share) -> tuple[str, str]:
        return (
            f"{befell('closed_announced', share.count)} after their first request each: {said}{share.when()}",
            "switch keep-alive on: keepalive_timeout and keepalive_requests well above 0 in nginx.conf",
        )

    for cell in case.of("closed_announced"):
        case.take(cell, "keepalive_off", words, certain, where=("requests", 0, 1))


def keepalive_requests(case: Case) -> None:
    """Ended at a certain request, whatever the age: keepalive_requests."""
    have = case.configured("keepalive_requests")
    if have is not None and have > 1:
        cells = case.of("closed_announced")
        there = sum(min(cell.left, within(case.rest(cell).requests, have, have)) for cell in cells)
        if there >= FEWEST or there == left(cells):
            certain = there >= FEWEST
            said = as_configured("keepalive_requests", format_count(have), certain)
            words = _after_requests(format_count(have), said)
            for cell in cells:
                case.take(cell, "keepalive_requests", words, certain, where=("requests", have, have))
    cells = case.of("closed_announced")
    rest = case.all_of("closed_announced")
    found = mode(rest.requests)
    if found is None or found[1] < 2 or _by_configured_age(case, rest.age_s) or _among_idle(case, cells):
        return
    low, high = found
    numbers = format_count(low) if low == high else f"{format_count(low)}-{format_count(high)}"
    if case.gap_s < _REGULAR_S and narrow(rest.age_s) is not None:
        # Gaps of one length make request numbers and ages say the same.
        said = "looks like nginx keepalive_requests or keepalive_time, which look the same with heartbeats this regular"
        code, remedy = "keepalive_limit", f"{_MORE_REQUESTS}; {_MORE_TIME}"
    elif low < high and narrow(rest.age_s, case.gap_s + 1) is not None:
        # A limit of requests is exact; numbers that spread at ages that lie within a gap are those of a limit of age.
        return
    else:
        default = "1,000 by default" if low <= 1000 <= high else "100 by default before 1.19.10" if low <= 100 <= high else ""
        said = _looks_like(case, "keepalive_requests", default) + _disputed(case, "keepalive_requests", format_count)
        code, remedy = "keepalive_requests", _MORE_REQUESTS
    words = _after_requests(numbers, said, remedy)
    for cell in cells:
        case.take(cell, code, words, False, where=("requests", low, high))


def _after_requests(numbers: str, said: str, remedy: str = _MORE_REQUESTS) -> Words:
    return lambda share: (
        f"{befell('closed_announced', share.count)} after {numbers} requests each, at age {share.ages()}: {said}{share.when()}",
        remedy,
    )


def keepalive_time(case: Case) -> None:
    """Ended at the first heartbeat past a certain age, whatever the number of requests: keepalive_time."""
    have = case.configured("keepalive_time")
    if have is not None:
        cells = case.of("closed_announced")
        low, high = _age_window(case, have)
        there = sum(min(cell.left, within(case.rest(cell).age_s, low, high)) for cell in cells)
        if there >= FEWEST or there == left(cells):
            certain = there >= FEWEST
            words = _at_age(as_configured("keepalive_time", format_duration(have), certain))
            for cell in cells:
                case.take(cell, "keepalive_time", words, certain, where=("age_s", low, high))
    cells = case.of("closed_announced")
    age_s = case.all_of("closed_announced").age_s
    width = max(NARROW, case.gap_s + 1, NARROW_SHARE * (age_s.quantile(0.5) or 0.0))
    span = narrow(age_s, width)
    if span is None or span[1] < 2 or _among_idle(case, cells):
        return
    low, high = max(0.0, span[0] - width), span[1] + width
    if not (low <= _DEFAULT_TIME_S <= high or _is_no_moment(cells, age_s, span)):
        return
    default = "1 h by default" if low <= _DEFAULT_TIME_S <= high else ""
    said = _looks_like(case, "keepalive_time", default) + _disputed(case, "keepalive_time", format_duration)
    for cell in cells:
        case.take(cell, "keepalive_time", _at_age(said), False, where=("age_s", low, high))


def _at_age(said: str) -> Words:
    return lambda share: (
        f"{format_count(share.count)} {'connection was' if share.count == 1 else 'connections were'} closed at age "
        f"{share.ages()}, at their next heartbeat: {said}{share.when()}",
        _MORE_TIME,
    )


def _age_window(case: Case, limit_s: float) -> tuple[float, float]:
    """The ages at which a limit of age ends connections: at the first heartbeat past it."""
    return max(0.0, limit_s - 1), limit_s + case.gap_s + 1 + case.timeout_s


def _by_configured_age(case: Case, age_s: Histogram) -> bool:
    """nginx.conf's limit of age explains half or more of these, which a mode of request numbers would take from it."""
    have = case.configured("keepalive_time")
    return have is not None and within(age_s, *_age_window(case, have)) >= max(1.0, 0.5 * age_s.count)


def _among_idle(case: Case, cells: list[Cell]) -> bool:
    """These died within seconds, with at least as many that were told nothing: their ages and numbers are an accident."""
    instants = [cell.to_s for cell in cells]
    if not instants or max(instants) - min(instants) > _SPREAD_S:
        return False
    beside = [one for one in case.of("closed_idle") if min(instants) <= one.to_s <= max(instants)]
    return left(beside) >= left(cells)


def client_header_timeout(case: Case) -> None:
    """Closed without ever having sent a request, when nginx.conf says."""
    have = case.configured("client_header_timeout")
    cells, idle_s = _without_request(case)
    if have is None or have < 1 or not is_timer(idle_s, have):
        return
    certain = sum(within(cell.dead.requests, 0, 0) for cell in cells) >= FEWEST
    said = as_configured("client_header_timeout", in_seconds(have), certain)
    _before_request(case, cells, (have, have), said, certain)


def likely_client_header_timeout(case: Case) -> None:
    """The same where no configuration says so."""
    cells, idle_s = _without_request(case)
    span = narrow(idle_s)
    if span is None or span[1] < 1:
        return
    low, high = timer_window(*span)
    default = "60 s by default" if low <= 60 <= high else ""
    said = _looks_like(case, "client_header_timeout", default) + _disputed(case, "client_header_timeout", in_seconds)
    _before_request(case, cells, span, said, False)


def _without_request(case: Case) -> tuple[list[Cell], Histogram]:
    """The cells in which some were closed before any request, and their idle times; none where those are few of them."""
    cells = [cell for cell in case.of("closed_idle") if within(cell.dead.requests, 0, 0)]
    silent = sum(within(cell.dead.requests, 0, 0) for cell in cells)
    cells = cells if silent >= 0.5 * left(cells) else []
    return cells, case.pool(cells).idle_s


def _before_request(case: Case, cells: list[Cell], span: tuple[float, float], said: str, certain: bool) -> None:
    low, high = timer_window(*span)

    def words(share: Share) -> tuple[str, str]:
        return (
            f"{befell('closed_idle', share.count)}, {in_seconds(*span)} after they were opened and before their first request: "
            f"{said}{share.when()}",
            "raise client_header_timeout in nginx.conf, or send the first heartbeat at once (--first-beat now)",
        )

    for cell in cells:
        count = min(within(cell.dead.requests, 0, 0), within(case.rest(cell).idle_s, low, high))
        case.take(cell, "client_header_timeout", words, certain, count=count)


def keepalive_timeout(case: Case) -> None:
    """Closed when idle for as long as nginx.conf allows; and the heartbeats that crossed with the close."""
    cells, have = case.of("closed_idle"), case.configured("keepalive_timeout")
    idle_s = case.all_of("closed_idle").idle_s
    if have is None or have <= 0 or not is_timer(idle_s, have):
        return
    low, high = timer_window(have, have)
    if not tells(case.gap_s, idle_s, low, high, named=True):
        return
    after = in_seconds(have)
    certain = within(idle_s, low, high) >= FEWEST
    said = as_configured("keepalive_timeout", after, certain)

    def words(share: Share) -> tuple[str, str]:
        return f"{befell('closed_idle', share.count)}, {after} after their last answer: {said}{share.when()}", _MORE_IDLE

    def crossed(cause: str) -> Words:
        return lambda share: (
            f"{befell(cause, share.count)}, {after} after the last one, as it crossed with the close: {said}{share.when()}",
            _MORE_IDLE,
        )

    for cell in cells:
        case.take(cell, "keepalive_timeout", words, certain, where=("idle_s", low, high))
    for cell in case.of("closed_awaiting", "reset"):
        case.take(cell, "keepalive_timeout", crossed(cell.cause), certain, where=("idle_s", low, high))


def idle_timeout(case: Case) -> None:
    """Ended when idle for a time that no configuration names: a timeout of the server's, or of a box on the way."""
    for cause in ("closed_idle", "reset", "closed_announced"):
        cells = case.of(cause)
        if cause == "reset" and case.asked(cells) >= 0.5:
            continue  # by the answer to a heartbeat, not by a timer
        while (found := mode(case.all_of(cause).idle_s)) is not None:
            low, high = found
            # Up to 1 s is also what whatever befalls a fleet that was just opened shows.
            if high < 2 or not tells(case.gap_s, case.all_of(cause).idle_s, low, high):
                break
            code, said, remedy = _whose_timeout(case, cause, low, high)
            kept = _kept(case, cells) if cause == "reset" else 0
            if kept:
                said = f"{said}; the server still counts {format_count(kept)} of them as open, so it was not told"
            words = _after_idle(cause, said, remedy)
            for cell in cells:
                case.take(cell, code, words, kept > 0, place=round(low), where=("idle_s", low, high))
            cells = case.of(cause)


def _kept(case: Case, cells: list[Cell]) -> int:
    """How many of these the server's own count still holds, if that is half of them or more."""
    count = left(cells)
    if count < FEWEST:
        return 0
    excess = case.witness.about(min(cell.from_s for cell in cells), max(cell.to_s for cell in cells), count).excess or 0
    return min(excess, count) if excess >= 0.5 * count else 0


def _after_idle(cause: str, said: str, remedy: str) -> Words:
    return lambda share: (f"{befell(cause, share.count)}, {share.idles()} after their last answer: {said}{share.when()}", remedy)


def _whose_timeout(case: Case, cause: str, low: float, high: float) -> tuple[str, str, str]:
    """Code, name and remedy of a timeout between these times."""
    whose = known_idle(low, high)
    if cause == "reset":
        # "Timed out keep-alive connections are closed normally": nginx's reset_timedout_connection, nginx.org.
        said = "a server closes such connections in order, so it looks like a box on the way"
        return "box_reset", said + (f" ({whose})" if whose else ""), _BEAT_OFTENER
    if cause == "closed_announced":
        return "idle_timeout", "looks like an idle timeout that says farewell (HTTP 408)", _BEAT_OFTENER
    have = case.configured("keepalive_timeout")
    default = next((words for seconds, words in _NGINX_S.items() if low - 1 <= seconds <= high + 1), "")
    if have is not None and not (default and case.witness.direct):
        said = f"nginx.conf says keepalive_timeout {in_seconds(have)}: it was changed since, or it looks like a box on the way"
        return "box_idle_timeout", said + (f" ({whose})" if whose else ""), _BEAT_OFTENER
    if case.witness.is_nginx or (default and not case.witness.name):
        said = _looks_like(case, "keepalive_timeout", default) + _disputed(case, "keepalive_timeout", in_seconds)
        return "keepalive_timeout", said, _MORE_IDLE
    return "idle_timeout", f"looks like {whose or 'an idle timeout of the server or of a box on the way'}", _BEAT_OFTENER


def known_idle(low: float, high: float) -> str:
    """Whose default an idle timeout between these times is; "" when nobody's that is known."""
    return next((name for seconds, name in KNOWN_IDLE_S.items() if low - 1 <= seconds <= high + 1), "")


def forgotten(case: Case) -> None:
    """Ended by the answer to a heartbeat that came after a long pause, and only then: a box had forgotten the connection."""
    for cause in ("reset", "closed_awaiting"):
        cells = case.of(cause)
        idle_s = case.all_of(cause).idle_s
        edge = idle_edge(case, idle_s, left(cells))
        if edge is None or (cause == "reset" and case.asked(cells) < 0.5):
            continue
        whose = known_idle(edge, edge)
        said = f"looks like a box on the way that forgets idle connections{f' ({whose})' if whose else ''}"

        def words(share: Share, cause: str = cause, edge: float = edge, said: str = said) -> tuple[str, str]:
            return (
                f"{befell(cause, share.count)}, all of them idle for {in_seconds(edge)} or longer before (heartbeats are 1 to "
                f"{case.gap_s:.0f} s apart): {said}{share.when()}",
                _BEAT_OFTENER,
            )

        for cell in cells:
            case.take(cell, "box_reset", words, False, where=("idle_s", edge, math.inf))


def idle_edge(case: Case, idle_s: Histogram, count: int, waited_s: float = 0.0) -> float | None:
    """The idle time (s) from which on connections die at their heartbeat, where shorter gaps would have killed some too.

    Gaps are uniform in [1, gap]. Whoever is met in one moment is met in a long gap the more often, so that by mere chance one
    is at least x with (gap^2 - x^2)/(gap^2 - 1), more than that of all gaps. ``waited_s`` of the recorded idle time went by
    after the heartbeat. None where there is no such edge.
    """
    if case.gap_s < _REGULAR_S or count < FEWEST:
        return None
    for strays in (0.0, 0.02 * count if count >= 50 else 0.0):
        # The least; or, where one in fifty strays, where the others begin.
        low, before, upto = 0.0, 0, 0
        for key, many in idle_s.items():
            low, before, upto = float(max(bounds(key)[0], idle_s.least)), upto, upto + many
            if upto > strays:
                break
        edge = low - waited_s
        chance = (case.gap_s**2 - edge**2) / (case.gap_s**2 - 1.0)
        if edge >= 1.0 and accident(1.0 - before / count, chance, count) < _NO_ACCIDENT:
            return edge
    return None


def lifetime(case: Case) -> None:
    """Ended at a certain age without a word, though not all at one moment: a limit of age on the way."""
    for cause in ("closed_idle", "reset", "closed_awaiting"):
        cells = case.of(cause)
        age_s = case.all_of(cause).age_s
        span = narrow(age_s)
        if span is None or span[1] < 1 or not _is_no_moment(cells, age_s, span):
            continue
        low, high = timer_window(*span)

        def words(share: Share, cause: str = cause) -> tuple[str, str]:
            return (
                f"{befell(cause, share.count)} at age {share.ages()}, whatever their idle time: looks like a limit of age of the "
                f"server's or of a box on the way{share.when()}",
                "raise that limit, or hold for less",
            )

        for cell in cells:
            case.take(cell, "lifetime", words, False, where=("age_s", low, high))


def _is_no_moment(cells: list[Cell], age_s: Histogram, ages: tuple[float, float]) -> bool:
    """Whether the middle 80 % of the deaths are spread well wider than those of their ``ages``, of ``age_s``, can be.

    A limit of age leaves instants as spread as the openings were, and ages that agree; a moment does the reverse.
    """
    ordered = sorted(cells, key=lambda cell: cell.to_s)
    upto = list(itertools.accumulate(cell.left for cell in ordered))
    first, last = (ordered[bisect.bisect_left(upto, share * upto[-1])].to_s for share in (0.1, 0.9))
    # At 8 h a bucket is minutes wide.
    low = max(bounds(bucket(int(ages[0])))[0], age_s.least)
    high = min(bounds(bucket(int(ages[1])))[1], age_s.greatest)
    return last - first >= max(_SPREAD_S, 2 * (high - low))


def closed_at_once(case: Case) -> None:
    """Ended before the first answer, at age 0: whoever accepts does not serve."""
    for cause in ("closed_awaiting", "reset", "closed_idle"):
        cells = [cell for cell in case.of(cause) if within(cell.dead.requests, 0, 0) and within(cell.dead.age_s, 0, 0)]
        young = sum(min(within(case.rest(cell).requests, 0, 0), within(case.rest(cell).age_s, 0, 0)) for cell in cells)
        if young < FEWEST or young < 0.8 * left(case.of(cause)):
            continue

        def words(share: Share, cause: str = cause) -> tuple[str, str]:
            return (
                f"{befell(cause, share.count)}, at once and without any answer: whoever accepted them does not serve them "
                f"(nginx: return 444, or no free slot; a box on the way without a server behind it){share.when()}",
                "see the server's error log, and its limits on connections and descriptors",
            )

        for cell in cells:
            rest = case.rest(cell)
            count = min(within(rest.requests, 0, 0), within(rest.age_s, 0, 0))
            case.take(cell, "closed_at_once", words, False, count=count)


def _looks_like(case: Case, directive: str, default: str = "") -> str:
    """The mechanism as a likelihood: nginx's own where the server is one, or may be."""
    if case.witness.is_nginx or not case.witness.name:
        return f"looks like nginx {directive}{f' ({default})' if default else ''}"
    whose = "the server or of a box on the way" if case.witness.name == "nginx" else case.witness.name
    return f"looks like a limit of {whose}, such as nginx's {directive}"


def _disputed(case: Case, directive: str, show: Callable[[float], str]) -> str:
    """What nginx.conf says instead, where it was read."""
    have = case.configured(directive)
    if have is None:
        return ""
    return f", though nginx.conf says {show(have)}: it was changed since, or another on the way did it"
