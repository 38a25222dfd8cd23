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
    """One suite. A failure of the server or of a limit is a failure; a verdict or a limit that
    cannot be judged is an error; one that only this installation cannot judge is skipped.

    If only limits decided the verdict, their tests say so, and the test of the verdict is skipped:
    each cause counts once.
    """
    run = summary.run
    verdict = summary.finding(f"verdict_{summary.verdict}")
    reason = ("", "")
    if verdict is not None:
        reason = (verdict.evidence, verdict.remedy)
    url = summary.plan["urls"][0]
    return suite(
        summary.verdict,
        reason,
        summary.findings,
        url,
        run.started,
        run.duration_s,
        summary.is_by_limits,
    )


#: The kind of a test by the code of its finding, of a limit, or by its verdict; of others an error.
_KINDS = {"limit_kept": "", "limit_crossed": "failure", "passed": "", "failed": "failure"}


def suite(
    verdict: str,
    why: tuple[str, str],
    findings: Iterable[Finding],
    url: str,
    started: str,
    duration_s: float,
    by_limits: bool,
) -> str:
    """The suite of a soak or bench. ``why``: evidence and remedy of its verdict; ``by_limits``:
    only limits decided it.
    """
    kind = "skipped" if by_limits else _KINDS.get(verdict, "error")
    cases = [("verdict", kind, *why)]
    for finding in findings:
        if finding.code in LIMITS:
            kind = _kind_of_limit(finding)
            cases.append((finding.fields["limit"], kind, finding.evidence, finding.remedy))
    kinds = [kind for _, kind, _, _ in cases]
    root = ET.Element(
        "testsuite",
        name=_clean(f"asyncli {url}"),
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time=f"{duration_s:.3f}",
        timestamp=started,
    )
    for name, kind, evidence, remedy in cases:
        case = ET.SubElement(root, "testcase", classname="asyncli", name=_clean(name), time="0")
        if kind:
            ET.SubElement(case, kind, message=_clean(evidence), type=verdict).text = _clean(remedy)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _kind_of_limit(finding: Finding) -> str:
    if finding.fields.get("not_judged") is not None:
        return "skipped"
    return _KINDS.get(finding.code, "error")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", oneline(text))
