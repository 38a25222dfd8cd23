"""A run as JUnit XML, which CI systems know: the verdict is a test, and so is each limit of ``--fail-if``."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from asyncli.report.summary import Summary
from asyncli.text import oneline

# What XML 1.0 cannot hold, escaped or not (2.2).
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LIMITS = ("limit_kept", "limit_crossed", "limit_unknown")


def to_junit(summary: Summary) -> str:
    """One suite: failures are what the server or a limit failed, errors what cannot be judged."""
    found = {one.code: one for one in summary.findings if one.code.startswith("verdict_")}
    said = next(iter(found.values()))
    cases = [("verdict", {"passed": "", "failed": "failure"}.get(summary.verdict, "error"), said.evidence, said.remedy)]
    for one in summary.findings:
        if one.code in _LIMITS:
            kind = {"limit_kept": "", "limit_crossed": "failure"}.get(one.code, "error")
            cases.append((one.fields["limit"], kind, one.evidence, one.remedy))
    suite = ET.Element(
        "testsuite",
        name=_clean(f"asyncli {summary.plan['urls'][0]}"),
        tests=str(len(cases)),
        failures=str(sum(kind == "failure" for _, kind, _, _ in cases)),
        errors=str(sum(kind == "error" for _, kind, _, _ in cases)),
        time=f"{summary.run.duration_s:.3f}",
        timestamp=summary.run.started,
    )
    for name, kind, evidence, remedy in cases:
        case = ET.SubElement(suite, "testcase", classname="asyncli", name=_clean(name), time="0")
        if kind:
            ET.SubElement(case, kind, message=_clean(evidence), type=summary.verdict).text = _clean(remedy)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", oneline(text))
