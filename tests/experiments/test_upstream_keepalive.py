"""Keep-alive between a proxy and its backends: what made-up rounds come to. The real servers are in test_framework.py."""

from __future__ import annotations

from typing import Any

import pytest

from asyncli.experiments import load
from asyncli.experiments.record import Claim, Round
from asyncli.experiments.upstream_keepalive import conclude

EXPERIMENT = load("upstream-keepalive")
OFF, FEW, FEW_ROOMY, MANY_ROOMY = "off", "on, 100 a connection", "on, 100, room for 128", "on, 1,000, room for 128"


def rounds(*each: tuple[float, float, float, float], **figures: Any) -> list[Round]:
    """Requests a second of each step, a round each."""
    return [
        {"step": step, "round": number, "per_s": per_s, **figures}
        for number, of in enumerate(each)
        for step, per_s in zip((OFF, FEW, FEW_ROOMY, MANY_ROOMY), of, strict=True)
    ]


def claim(made: list[Round], words: str) -> Claim:
    (found,) = [one for one in conclude(EXPERIMENT.defaults, made).claims if words in one.claim]
    return found


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([2.2, 2.3, 2.25, 2.4, 2.3], "holds"),
        # A tenth more is not half of twice as many.
        ([1.10] * 5, "does not hold"),
        ([1.8, 1.9, 1.85, 1.8, 1.9], "does not hold"),
        ([1.83, 2.35, 2.0, 2.1, 2.2], "cannot say"),
        ([2.5, 2.5, 2.5, 2.5, 1.04], "cannot say"),
        ([2.4], "cannot say"),
        ([3.1], "holds"),
        ([1.1], "does not hold"),
    ],
)
def test_more_than_doubles(gains: list[float], verdict: str) -> None:
    found = claim(rounds(*((100.0, 100 * gain, 300.0, 300.0) for gain in gains)), "more than doubles")
    assert found.verdict == verdict
    assert found.why.endswith("Rule: above 2 times.")


@pytest.mark.parametrize("words", ["later default", "Room for more"])
@pytest.mark.parametrize(("more", "verdict"), [(1.2, "holds"), (1.051, "holds"), (1.049, "does not hold"), (0.9, "does not hold")])
def test_a_difference_counts_from_5_percent_on(words: str, more: float, verdict: str) -> None:
    found = claim(rounds(*[(50.0, 100.0, 100 * more, 100 * more * more)] * 3), words)
    assert found.verdict == verdict
    assert found.why.startswith(f"{more:g}" if more not in (1.2, 0.9) else f"{more:.2f}")


def test_one_round_near_the_rule_says_nothing_on_either_side() -> None:
    for more in (1.019, 1.021, 1.06):
        assert claim(rounds((100.0, 250.0, 250.0, 250.0 * more)), "later default").verdict == "cannot say"


def test_speed_of_which_asyncli_was_the_limit_is_not_judged() -> None:
    made = rounds(*[(100.0, 300.0, 300.0, 300.0)] * 3)
    made[1]["busy"] = ["generator_saturated_cpu"]
    found = claim(made, "more than doubles")
    assert found.verdict == "cannot say"
    assert found.why.startswith("asyncli was the limit of keep-alive on, 100 a connection")
    assert "asyncli itself was the limit of keep-alive on, 100 a connection" in conclude(EXPERIMENT.defaults, made).tables[0].caption
    made[1]["busy"] = ["both_busy"]
    assert claim(made, "more than doubles").verdict == "holds"


def test_a_round_that_failed_is_left_out() -> None:
    whole = rounds(*[(100.0, 300.0, 300.0, 300.0)] * 3)
    for failed in ({"failed": 150_000}, {"usable": False}):
        assert conclude(EXPERIMENT.defaults, [*whole, {"step": FEW, "round": 3, "per_s": 9e9, **failed}]) == conclude(
            EXPERIMENT.defaults, whole
        )


@pytest.mark.parametrize(
    ("few", "roomy", "verdict"),
    [([98.0, 99.0], [98.0, 99.0], "holds"), ([25.0, 37.0], [98.0, 99.0], "holds in part"), ([25.0, 37.0], [50.0, 60.0], "does not hold"),
     ([25.0, 95.0], [95.0, 20.0], "cannot say")],
)  # fmt: skip
def test_as_many_requests_on_each_connection_as_it_may_serve(few: list[float], roomy: list[float], verdict: str) -> None:
    made = [
        {"step": step, "round": number, "each": value}
        for step, values in ((FEW, few), (FEW_ROOMY, roomy))
        for number, value in enumerate(values)
    ]
    assert claim(made, "serves 100 requests").verdict == verdict


def test_of_no_round_no_bar_is_drawn() -> None:
    found = conclude(EXPERIMENT.defaults, [])
    assert (found.claims, found.charts[0].lines) == ([], [])
    (line,) = conclude(EXPERIMENT.defaults, rounds((1.0, 2.0, 3.0, 4.0))).charts[0].lines
    assert (line.xs, line.ys) == ([0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
