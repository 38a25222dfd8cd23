"""``asyncli explain [TERM]``."""

from __future__ import annotations

import importlib
import pkgutil
import re
import textwrap

import click

from asyncli.cli.outputs import printing
from asyncli.model.errors import PlanError


@click.command(name="explain")
@click.argument("term", default="", metavar="[TERM]")
def command(term: str) -> int:
    """Explain a term of the report, or a finding, a cause or a diagnosis by its code. Without TERM, list them all.

    The terms are the sections of docs/method.md. A limit of the preflight is explained by the section that names it.
    """
    from asyncli import findings
    from asyncli.findings import bottleneck, loss_causes
    from asyncli.findings.losses import causes

    known_terms, (found, diagnoses) = terms(), codes()
    own = [f"{term} (a cause): {text}" for text in causes(term)]
    for what, catalogue in (("a diagnosis", loss_causes), ("a bottleneck", bottleneck)):
        for evidence, remedy, _ in catalogue.meanings(term) if term in catalogue.CODES else ():
            own.append(f"{term} ({what}): {evidence}" + (f"; remedy: {remedy}" if remedy != "..." else ""))
    # A cause such as generator_lost may match a code that contains a field.
    entries = [one for one in findings.entries_of(term) if not own or one.code == term]
    # capacity names what delayed asyncli without the prefix.
    entries = entries or [one for one in findings.CATALOGUE if one.code == f"generator_saturated_{term}"]
    with printing():
        if not term:
            for what, names in (("Terms", known_terms), ("Findings", found), ("Causes and diagnoses", diagnoses)):
                print(textwrap.fill(f"{what}: {', '.join(names)}.", 100, subsequent_indent="  ", break_on_hyphens=False))
        elif (known := known_terms.get(term.lower().replace("_", " "))) is not None:
            print(_plain(known))
        elif entries or own:
            for one in entries:
                print(f"{term} ({one.severity}): {' '.join(one.about.replace('`', '').split())}")
            for line in own:
                print(line)
        elif (known := next((text for text in known_terms.values() if _names(text, term)), None)) is not None:
            print(_plain(known))
        else:
            raise PlanError(f"TERM: no term {term!r}; 'asyncli explain' lists the terms")
    return 0


def _names(text: str, term: str) -> bool:
    """Whether a section defines the term: in bold, or as code."""
    return f"`{term}`" in text or f"**{term.lower()}**" in text.lower()


def _plain(text: str) -> str:
    return text.replace("`", "").replace("**", "")


def terms() -> dict[str, str]:
    """The sections of docs/method.md by title."""
    from asyncli.lab.resources import document

    _, *parts = re.split(r"^## (.+)$", document("method.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))


def codes() -> tuple[list[str], list[str]]:
    """The codes of all findings, and those of all causes and diagnoses."""
    from asyncli import findings
    from asyncli.findings import bottleneck, loss_causes
    from asyncli.findings.losses import CONNECT_WORDS, LOSS_WORDS

    for module in pkgutil.iter_modules(findings.__path__, "asyncli.findings."):
        importlib.import_module(module.name)
    diagnoses = {*LOSS_WORDS, *CONNECT_WORDS, *loss_causes.CODES, *bottleneck.CODES}
    return sorted({one.code for one in findings.CATALOGUE}), sorted(diagnoses)
