"""The catalogue of findings: what an entry makes, and that each has an explanation."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec

from asyncli import findings
from asyncli.findings import CATALOGUE, INSTANTS, rewritten
from asyncli.findings.clocks import suspended
from asyncli.findings.probes import probe_lost
from asyncli.model.records import Finding
from asyncli.store.lazy_ticks import decode_finding

for _module in pkgutil.iter_modules(findings.__path__, "asyncli.findings."):
    importlib.import_module(_module.name)


def test_an_entry_makes_its_finding_with_what_was_seen_as_fields() -> None:
    found = suspended(60.0, for_s=7200.04, from_local="2026-01-01 00:00:00", to_local="2026-01-01 02:00:00")
    assert (found.code, found.severity) == ("suspended", "warning")
    assert found.fields == {"at_s": 60.0, "for_s": 7200.04, "from_local": "2026-01-01 00:00:00", "to_local": "2026-01-01 02:00:00"}
    assert " 2 h, " in found.evidence
    row = (60.0, found.code, found.severity, found.evidence, found.remedy, msgspec.json.encode(found.fields))
    assert decode_finding(row) == (60.0, found)
    # A file of an asyncli that stored no fields.
    assert decode_finding(row[:5]) == (60.0, Finding(found.code, found.severity, found.evidence, found.remedy))


def test_what_comes_from_outside_is_made_printable_in_fields_too() -> None:
    assert Finding("a", "info", "b", fields={"name": "nginx\x1b[2J", "many": ["\n"]}).fields == {"name": "nginx?[2J", "many": [" "]}


def test_another_clocks_instants_are_moved_in_fields_and_words_and_no_address_is_taken_for_one() -> None:
    theirs = probe_lost("status", 7.0, "status page http://[fd00::10:20:30]:8081/: no answer", False)
    ours = rewritten(theirs, lambda name, value: value + 60.0 if name in INSTANTS else value)
    assert ours == probe_lost("status", 67.0, theirs.fields["why"], False, [])
    assert " 0:01:07 " in ours.evidence
    # What comes from outside may have any fields.
    for fields in ({}, {"probe": "status"}, {"probe": "status", "from_s": "soon", "why": ""}, {"probe": 1, "from_s": 1.0, "why": ""}):
        odd = msgspec.structs.replace(theirs, fields=fields)
        assert rewritten(odd, lambda _, value: value) == odd


def test_each_entry_says_what_it_means() -> None:
    assert [one.code for one in CATALOGUE if not one.about.endswith(".")] == []
