"""Cases that fuzzing found stay fixed, and a short run of every target finds nothing. A long run: ``python bench/fuzz.py``."""

from __future__ import annotations

from random import Random

import pytest
from drive import TARGETS, Breach, Tally, bounded, target
from found import FOUND

INPUTS = {"http1": 4_000, "websocket": 4_000, "http2": 4_000, "sse": 3_000, "mqtt": 4_000, "tcp": 4_000, "tls": 3_000, "pages": 4_000, "plans": 2_000, "thresholds": 2_000, "runs": 400}
assert set(FOUND) == set(INPUTS) == set(TARGETS)


@pytest.mark.parametrize(("name", "case"), [pytest.param(name, case, id=f"{name}-{number}") for name, cases in FOUND.items() for number, case in enumerate(cases)])
def test_found_cases_stay_fixed(name: str, case: object) -> None:
    with bounded() as clock:
        clock()
        assert target(name).check(case)


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str) -> None:
    found: list[Breach] = []
    tally = Tally(target(name), INPUTS[name], found.append)
    chance = Random(2)
    with bounded() as clock:
        for _ in range(INPUTS[name]):
            clock()
            tally.one(chance)
    assert not found
    # Neither nearly all nor nearly none are refused.
    kinds = tally.kinds
    assert 0.1 < sum(count for kind, count in kinds.items() if kind.startswith("accepted")) / tally.done < 0.9, kinds
