"""What short against persistent connections are called, and the source's claims of them judged. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from asyncli.experiments.judging import (
    LESS,
    WORTH,
    ClaimCase,
    Interval,
    claimed,
    interval,
    intervals,
    judge_each,
    limited,
    together,
)
from asyncli.experiments.record import Claim, Rounds, span

#: setup -> the lab's server for it. Few: a child for two connections. Two ports: as the first, with a port for its status page,
#: for which the children accept under a lock.
SETUPS = {
    "Apache": "apache-prefork",
    "Apache, two ports": "apache-prefork",
    "Apache, few children": "apache-prefork",
    "nginx": "nginx",
}
FULL, TWO, FEW, NGINX = SETUPS
WAYS = {"short": True, "kept alive": False}
SHORT, KEPT = WAYS
#: What the step of a count of system calls has after its name.
CALLS = ": system calls"


def step_of(setup: str, way: str) -> str:
    """The name of a measurement among the rounds."""
    return f"{setup}, {way}"


def _by_short(rounds: Rounds, key: str, suffix: str = "") -> dict[str, Interval]:
    """Kept alive by short in the same round, of each setup of which that was measured."""
    return intervals({one: rounds.ratio(step_of(one, KEPT) + suffix, step_of(one, SHORT) + suffix, key) for one in SETUPS})


_MORE_RULE, _LESS_RULE = f"above {WORTH:g} times", f"below {LESS:.3f} times"


def judge(rounds: Rounds) -> Iterator[Claim]:
    """The source's, each judged on kept alive by short in the same round, of every setup that was measured."""
    # The speed of a setup of which asyncli was the limit is not the server's; what a request cost the server is.
    busy = limited(rounds)
    ours = [setup for setup in SETUPS if busy & {step_of(setup, way) for way in WAYS}]
    left_out = f". Not judged, since asyncli was the limit: {', '.join(ours)}" if ours else ""

    def judged(known: dict[str, Interval]) -> dict[str, Interval]:
        return {setup: one for setup, one in known.items() if setup not in ours}

    def less(text: str, known: dict[str, Interval], more: str, rule: str = _LESS_RULE) -> Iterator[Claim]:
        if known:
            yield claimed(text, judge_each(known, below=LESS, unit=" times"), rule, more=more)

    if per_s := _by_short(rounds, "per_s"):
        cases = judge_each(judged(per_s), above=WORTH, unit=" times")
        text = "Persistent connections carry more requests a second."
        yield claimed(text, cases, _MORE_RULE, more=f"The source had 3.21 times{left_out}")
    yield from less("They cost the server less CPU a request.", _by_short(rounds, "server_us"), "The source shows curves only")
    yield from less("They cost less I/O a request.", _io(rounds), _disk(rounds), f"{_LESS_RULE}, each kind by itself")
    calls = _by_short(rounds, "all", CALLS)
    yield from less("They cost fewer system calls a request.", calls, "The source had 0.77 times in one Apache child")
    # The source's Apache forked a process for each connection that was kept. Here all stand from the start: what is no more
    # may be so for that alone, so the claim can be shown and not be refuted.
    if pss := _by_short(rounds, "pss_bytes"):
        yield claimed(
            "They cost more memory.",
            [one._replace(side=one.side or None) for one in judge_each(pss, above=WORTH, unit=" times")],
            f"{_MORE_RULE}; less says nothing",
            more="PSS of the server's processes, which all stand from the start: the source's reason, a process forked for each "
            "kept connection, cannot show here",
        )
    if means := _by_short(rounds, "mean_ms"):
        tails = _by_short(rounds, "p999_ms")
        cases = [
            ClaimCase(
                f"{setup}: mean {mean.words(LESS)} times, p99.9 {tails[setup].words(WORTH)} times",
                together([mean.below(LESS), tails[setup].above(WORTH)]),
                (mean, tails[setup]),
            )
            for setup, mean in judged(means).items()
            if setup in tails
        ]
        more = f"The source had 5 against 18 ms, and a maximum of 1,409 against 101 ms{left_out}"
        rule = f"the mean {_LESS_RULE}, and p99.9 {_MORE_RULE}"
        yield claimed("They win the mean and lose the tail.", cases, rule, more=more)
    yield from _why_the_tail(rounds)


def _io(rounds: Rounds) -> dict[str, Interval]:
    """Each measure of I/O by itself; and each setup."""
    kinds = {"wire_bytes": "bytes above TCP", "segments": "TCP segments", "io_calls": "read and write calls"}
    found = {words: _by_short(rounds, key) for key, words in kinds.items()}
    return {f"{setup}, {words}": of[setup] for setup in SETUPS for words, of in found.items() if setup in of}


def _disk(rounds: Rounds) -> str:
    disk = [value for one in rounds if (value := one.get("disk_bytes")) is not None]
    found = f"Of the disk at most {max(disk):.1f} bytes a request" if disk else "Of the disk nothing is known"
    return f"{found}. Bytes above TCP are without its headers and handshakes"


def _why_the_tail(rounds: Rounds) -> Iterator[Claim]:
    """Not the source's: what its tail is made of, and whether that is as much as Little's law foretold."""
    few = step_of(FEW, KEPT)
    cases = []

    def agree(key: str, other: str, words: str, show: Callable[[list[float]], str]) -> None:
        pairs = [(one[key], one[other]) for one in rounds if one["step"] == few and one.get(key) is not None and one.get(other)]
        if pairs:
            known = interval([mine / theirs for mine, theirs in pairs])
            mine, theirs = (show([float(pair[at]) for pair in pairs]) for at in (0, 1))
            cases.append(ClaimCase(f"{words.format(mine, theirs)}, {known.words(0.5, 2)} times", known.within(0.5, 2), (known,)))

    slow = "With few children {} of 1,000 requests are slower than ten medians, where {} are a connection's first"
    agree("slow", "first", slow, lambda values: span(values, ".1f"))
    agree("slow_ms", "queue_ms", "they take {} ms, where Little's law says {}", lambda values: span(values, ",.0f"))
    if not cases:
        return
    for setup, words in (
        (FEW, "p99.9 is {} times that with a child for each"),
        (TWO, "with a second port, for which children accept in turns under a lock, it is {} times"),
    ):
        if ratios := rounds.ratio(step_of(setup, KEPT), step_of(FULL, KEPT), "p999_ms"):
            known = interval(ratios)
            cases.append(ClaimCase(words.format(known.words(WORTH)), known.above(WORTH), (known,)))
    source = (
        "The source's sd of 22.5 ms would be that of 1 request in 100 waiting 0.23 s, by Little's law some 38 of its 100 "
        "connections without a child"
    )
    text = "The tail is a connection's first request, which waits for a child (ours, not the source's)."
    yield claimed(text, cases, f"from half to twice what was foretold, and p99.9 {_MORE_RULE}", more=source)
