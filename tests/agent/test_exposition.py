"""The page for Prometheus, parsed by the grammar of its text format 0.0.4."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from asyncli.agent.exposition import exposition
from asyncli.model.metrics import METRICS

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
_HELP = re.compile(rf"# HELP ({_NAME}) (?:[^\\\n]|\\\\|\\n)*")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary|untyped)")


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels; fails if the format is wrong: one HELP and one TYPE directly before a metric's lines."""
    assert text.endswith("\n")
    found: dict[tuple[str, str], float] = {}
    helped, typed, current = set(), {}, ""
    for line in text[:-1].split("\n"):
        if match := _HELP.fullmatch(line):
            assert match[1] not in helped
            helped.add(match[1])
        elif match := _TYPE.fullmatch(line):
            assert match[1] not in typed
            typed[match[1]] = match[2]
            current = match[1]
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == current, "the lines of a metric are one group"
            assert (match[1], match[2] or "") not in found
            found[match[1], match[2] or ""] = float(match[3])
    assert helped == set(typed) == {name for name, _ in found}
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in typed.items())
    return found


def test_every_metric_has_its_line() -> None:
    values = {name + ("X" if name.endswith(".") else ""): float(number) for number, name in enumerate(METRICS)}
    # An agent samples nothing of the soak's hosts.
    values = {name: value for name, value in values.items() if not name.startswith(("client.", "silent."))}
    found = parsed(exposition(values, "1.0")[0].decode())
    assert len(found) == len(values) + 1
    assert found["asyncli_status_accepts_total", ""] == values["status.accepts"]
    assert found["asyncli_server_pss_bytes", ""] == values["server.pss_bytes"]
    assert found["asyncli_server_cpu_seconds_total", ""] == values["server.cpu_s"]
    assert found["asyncli_kernel_slab_bytes", 'cache="X"'] == values["kernel.slab.X"]
    assert found["asyncli_tcp_events_total", 'counter="X"'] == values["tcp.X"]
    assert found["asyncli_agent_info", 'version="1.0"'] == 1.0


# Characters that labels escape, separate by or may not contain.
_TEXT = st.text('aZ09_:."\\\n\r\t {}=,#\x00\x85\xe9\u2028\U0001f600')
_NAMES = st.one_of(st.sampled_from(sorted(METRICS)), st.builds(str.__add__, st.sampled_from(["tcp.", "kernel.slab.", "probe."]), _TEXT))


@given(st.dictionaries(_NAMES, st.floats(allow_nan=False, allow_infinity=False)), _TEXT)
def test_any_name_keeps_the_format(values: dict[str, float], version: str) -> None:
    parsed(exposition(values, version)[0].decode())


def test_a_format_whose_version_is_no_number_gets_the_text_format() -> None:
    _, content_type = exposition({}, "1.0", "application/openmetrics-text; version=abc")
    assert content_type.startswith("text/plain")
