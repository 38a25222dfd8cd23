"""``asyncli explain [TERM]``."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from asyncli.cli.outputs import printing
from asyncli.model.errors import PlanError
from asyncli.model.exit_status import LISTED


@click.command(name="explain")
@click.argument("words", nargs=-1, metavar="[TERM]")
def command(words: Sequence[str]) -> int:
    """Explain a term of the report, a finding, a cause or a diagnosis by its code, or a key of the plan. Without TERM, list them.

    The terms are those of docs/method.md: its sections, and the words in bold. A limit of the preflight is explained by the
    paragraph that names it. Case, plural and numbers do not matter: "at 2,000" is "at N".
    """
    term, known, (found, diagnoses) = " ".join(words), terms() | dict.fromkeys(("exit", "exit status"), LISTED), codes()
    with printing():
        if not term:
            for what, names in (("Terms", known), ("Findings", found), ("Causes and diagnoses", diagnoses)):
                print(textwrap.fill(f"{what}: {', '.join(names)}.", 100, subsequent_indent="  ", break_on_hyphens=False))
            return 0
        by_form = {_form(name): text for name, text in known.items()}
        texts = next(filter(None, (_explained(one.strip(), by_form) for one in [term, *re.split(r"[,():]+", term)])), None)
        if texts is None:
            limits = re.findall(r"`(\w+)`", " ".join(known.values()))
            near = _near(term, [*known, *found, *diagnoses, *limits])
            raise PlanError(f"TERM: no term {term!r}; {near}'asyncli explain' lists the terms")
        print(*(re.sub(r"`|\*\*", "", one) for one in texts), sep="\n\n")
    return 0


def _near(term: str, names: Iterable[str]) -> str:
    """Asks for the name that ``term`` misspells, one of ``names`` or a key of the plan; "" if none is near."""
    from asyncli.cli.soak import command as soak

    by_form = {_form(name): name for name in (*names, *(one.name or "" for one in soak.params))}
    near = difflib.get_close_matches(_form(term), by_form, n=1)
    return f"did you mean {by_form[near[0]]!r}? " if near else ""


def _explained(term: str, by_form: Mapping[str, str]) -> list[str]:
    """What is known of it: as a term of the report, then as a code; else as code in a paragraph, else as a key of the plan."""
    from asyncli.cli.soak import command as soak

    form = _form(term)
    texts = [by_form[form]] if form in by_form else []
    texts += filter(None, ["\n".join(_of_code(term, exact=bool(texts)))])
    texts = texts or [one for one in by_form.values() if f"`{term}`" in one][:1] or _of_number(term, by_form)
    flags = (one for one in soak.params if isinstance(one, click.Option) and one.name == term.lower().replace(" ", "_"))
    return texts or [f"{one.opts[-1]} {one.metavar or ''}: {' '.join((one.help or '').split())}" for one in flags]


def _of_number(term: str, by_form: Mapping[str, str]) -> list[str]:
    """What a number of a run's JSON is, as in ``drift.server_user``, and the term of its first word."""
    from asyncli.report.summary import Summary
    from asyncli.report.thresholds import about

    try:
        found = f"{term}: {about(term, Summary)}" if "." in term else ""
    except ValueError:
        return []
    return [one for one in (found, by_form.get(term.partition(".")[0])) if found and one]


def _of_code(code: str, *, exact: bool) -> Iterator[str]:
    """The meanings of a finding, a cause or a diagnosis. ``exact``: not of a code with fields."""
    from asyncli import findings
    from asyncli.findings import bottleneck, loss_causes
    from asyncli.findings.losses import causes

    own = [f"{code} (a cause): {text}" for text in causes(code)]
    for what, catalogue in (("a diagnosis", loss_causes), ("a bottleneck", bottleneck)):
        for evidence, remedy, _ in catalogue.meanings(code) if code in catalogue.CODES else ():
            own.append(f"{code} ({what}): {evidence}" + (f"; remedy: {remedy}" if remedy else ""))
    # A cause such as generator_lost may match a code that contains a field.
    entries = [one for one in findings.entries_of(code) if not (own or exact) or one.code == code]
    # capacity names what delayed asyncli without the prefix.
    entries = entries or [one for one in findings.CATALOGUE if one.code == f"generator_saturated_{code}"]
    yield from (f"{code} ({one.severity}): {one.meaning}" for one in entries)
    yield from own


def _form(term: str) -> str:
    """``term`` in small letters, without articles, plurals and numbers."""
    text = " ".join(term.lower().replace("_", " ").replace("²", "2").split())
    for pattern, by in ((r"\b(?:an?|the) (?=\w)", ""), (r"\b\d[\d.,]*(?!\w)", "n"), (r"(?<=[^\Ws])s\b", "")):
        text = re.sub(pattern, by, text)
    return text


def terms() -> dict[str, str]:
    """Terms and what docs/method.md says of each: the section of that title, and the paragraphs that have it in bold."""
    from asyncli.lab.resources import document

    _, *parts = re.split(r"^## (.+)$", document("method.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))
    names = {_form(name): name for name in found}
    for text in "\n\n".join(found.values()).split("\n\n"):
        for bold in re.findall(r"\*\*(.+?)\*\*", text, re.DOTALL):
            name = names.setdefault(_form(bold), " ".join(bold.split()))
            if text not in found.get(name, ""):
                found[name] = f"{found[name]}\n\n{text}" if name in found else text
    return found


def codes() -> tuple[list[str], list[str]]:
    """The codes of all findings, and those of all causes and diagnoses."""
    from asyncli import findings
    from asyncli.findings import bottleneck, loss_causes
    from asyncli.findings.losses import CONNECT_WORDS, LOSS_WORDS

    for module in pkgutil.iter_modules(findings.__path__, "asyncli.findings."):
        importlib.import_module(module.name)
    diagnoses = {*LOSS_WORDS, *CONNECT_WORDS, *loss_causes.CODES, *bottleneck.CODES}
    return sorted({one.code for one in findings.CATALOGUE}), sorted(diagnoses)
