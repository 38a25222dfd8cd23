"""``asyncli explain [TERM]``."""

from __future__ import annotations

import importlib
import pkgutil
import re

import click

from asyncli.cli.outputs import printing
from asyncli.errors import PlanError


@click.command(name="explain")
@click.argument("term", default="", metavar="[TERM]")
def command(term: str) -> int:
    """Explain a term of the report, or a finding by its code; without TERM, list the terms.

    The terms are the paragraphs of docs/method.md; a limit of the preflight is explained by the paragraph that names it.
    """
    from asyncli import findings
    from asyncli.findings.losses import CONNECT_WORDS, LOSS_WORDS
    from asyncli.lab.resources import document

    for module in pkgutil.iter_modules(findings.__path__, "asyncli.findings."):
        importlib.import_module(module.name)
    _, *parts = re.split(r"^## (.+)$", document("method.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    terms = dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))
    with printing():
        if not term:
            print(f"Terms: {', '.join(terms)}.\nFindings: {', '.join(sorted({one.code for one in findings.CATALOGUE}))}.")
        elif (known := terms.get(term.lower().replace("_", " "))) is not None:
            print(known)
        elif entries := findings.entries_of(term):
            for one in entries:
                print(f"{term} ({one.severity}): {' '.join(one.about.split())}")
        elif (known := next((text for text in terms.values() if f"`{term}`" in text), None)) is not None:
            print(known)
        elif causes := [words for words in (LOSS_WORDS.get(term), CONNECT_WORDS.get(term, ("",))[0]) if words]:
            lost = "connections " if term in LOSS_WORDS else ""
            print(f"{term} (a cause): {lost}{'; or '.join(causes)}")
        else:
            raise PlanError(f"TERM: nothing is called {term!r}; 'asyncli explain' lists the terms")
    return 0
