"""A run as JUnit XML: a test for the verdict, and one for each limit of ``--fail-if``."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from asyncli.model.records import Finding
from asyncli.model.text import oneline
from asyncli.report.summary import Summary

# Not allowed in XML 1.0, escaped or not (2.2).
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Codes of the findings of limits.
LIMITS = ("limit_kept", "limit_crossed", "limit_unknown")


def to_junit(summary: Summary) -> str:
    """One suite. A failure of the server or of a limit is a failure; a verdict or a limit that cannot be judged is an error.

    If only limits made the run fail, their tests say so, and the test of the verdict is skipped: each cause counts once.
    """
    verdict, run = summary.finding(f"verdict_{summary.verdict}"), summary.run
    why = ("", "") if verdict is None else (verdict.evidence, verdict.remedy)
    by_limits = verdict is not None and verdict.fields["by_limits"]
    return suite(summary.verdict, why, summary.findings, summary.plan["urls"][0], run.started, run.duration_s, by_limits)


def suite(
    verdict: str, why: tuple[str, str], findings: Iterable[Finding], url: str, started: str, duration_s: float, by_limits: bool
) -> str:
    """The suite of a soak or bench. ``why``: evidence and remedy of its verdict; ``by_limits``: only limits made it fail."""
    kind = "skipped" if by_limits else {"passed": "", "failed": "failure"}.get(verdict, "error")
    cases = [("verdict", kind, *why)]
    for one in findings:
        if one.code in LIMITS:
            kind = {"limit_kept": "", "limit_crossed": "failure"}.get(one.code, "error")
            cases.append((one.fields["limit"], kind, one.evidence, one.remedy))
    whole = ET.Element(
        "testsuite",
        name=_clean(f"asyncli {url}"),
        tests=str(len(cases)),
        failures=str(sum(kind == "failure" for _, kind, _, _ in cases)),
        errors=str(sum(kind == "error" for _, kind, _, _ in cases)),
        skipped=str(sum(kind == "skipped" for _, kind, _, _ in cases)),
        time=f"{duration_s:.3f}",
        timestamp=started,
    )
    for name, kind, evidence, remedy in cases:
        case = ET.SubElement(whole, "testcase", classname="asyncli", name=_clean(name), time="0")
        if kind:
            ET.SubElement(case, kind, message=_clean(evidence), type=verdict).text = _clean(remedy)
    ET.indent(whole)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(whole, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", oneline(text))
