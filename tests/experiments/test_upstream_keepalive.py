"""The experiment upstream-keepalive: conclusions from synthetic rounds. Its real run is in test_framework.py."""

from __future__ import annotations

from typing import Any

import pytest

from asyncli.experiments import load
from asyncli.experiments.record import Rounds

EXPERIMENT = load("upstream-keepalive")
OFF, FEW, FEW_ROOMY = "off", "on, 100 a connection", "on, 100, room for 128"


def verdicts(key: str, **of_step: list[float]) -> list[str]:
    steps = {"off": OFF, "few": FEW, "roomy": FEW_ROOMY}
    made = [{"step": steps[name], "round": at, key: one} for name, values in of_step.items() for at, one in enumerate(values)]
    return [one.verdict for one in EXPERIMENT.conclude(EXPERIMENT.plan(), Rounds(made)).claims]


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
    assert verdicts("per_s", off=[100.0] * len(gains), few=[100 * gain for gain in gains]) == [verdict]


@pytest.mark.parametrize(
    ("few", "roomy", "verdict"),
    [([98.0, 99.0], [98.0, 99.0], "holds"), ([25.0, 37.0], [98.0, 99.0], "holds in part"), ([25.0, 37.0], [50.0, 60.0], "does not hold"),
     ([25.0, 95.0], [95.0, 20.0], "cannot say")],
)  # fmt: skip
def test_as_many_requests_on_each_connection_as_it_may_serve(few: list[float], roomy: list[float], verdict: str) -> None:
    assert verdicts("each", few=few, roomy=roomy) == [verdict]


def test_speed_of_which_asyncli_was_the_limit_is_not_judged() -> None:
    made: list[dict[str, Any]] = [{"step": OFF, "round": 0, "per_s": 100.0}, {"step": FEW, "round": 0, "per_s": 400.0}]
    assert [one.verdict for one in EXPERIMENT.conclude(EXPERIMENT.plan(), Rounds(made)).claims] == ["holds"]
    made[1]["busy"] = ["generator_saturated_cpu"]
    found = EXPERIMENT.conclude(EXPERIMENT.plan(), Rounds(made))
    assert [one.verdict for one in found.claims] == ["cannot say"]
    assert found.tables[0].caption.count(FEW) == 1
    assert found.tables[0].rows[0].source == {"per_s": "21,203", "mean_ms": "1.61"}
    (line,) = found.charts[0].lines
    assert (line.xs, line.ys) == ([0.0, 1.0], [100.0, 400.0])
