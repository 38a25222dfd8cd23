"""``asyncli explain [TERM]``."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from asyncli.cli.command import Command, main_flag
from asyncli.cli.outputs import printing
from asyncli.model.errors import PlanError
from asyncli.model.exit_status import LISTED

# Of the lists of names, in characters.
_INDENT = 2
_GAP = 2


@click.command(name="explain", cls=Command)
@click.argument("words", nargs=-1, metavar="[TERM]")
def command(words: Sequence[str]) -> int:
    """Explain a term of the report, a finding, a cause or a diagnosis by its code, or a key of the
    plan. Without TERM, list them.

    The terms are those of docs/reference/terms.md: its sections, and the words in bold. A limit of
    the preflight is explained by the paragraph that names it. Case, plural and numbers do not
    matter: "at 2,000" is "at N".
    """
    term = " ".join(words)
    known = terms() | {"exit": LISTED, "exit status": LISTED}
    finding_codes, diagnoses = codes()
    with printing():
        if not term:
            _print_names("Terms", list(known))
            _print_names("Findings", [code for code in finding_codes if "{" not in code])
            _print_forms()
            _print_names("Causes and diagnoses", diagnoses)
            return 0
        texts = _texts(term, {_form(name): text for name, text in known.items()})
        if not texts:
            limits = re.findall(r"`(\w+)`", " ".join(known.values()))
            near = _near(term, [*known, *finding_codes, *diagnoses, *limits])
            raise PlanError(f"TERM: no term {term!r}; {near}'asyncli explain' lists the terms")
        print(*(re.sub(r"`|\*\*", "", text) for text in texts), sep="\n\n")
    return 0


def _print_names(kind: str, names: Sequence[str]) -> None:
    """The names in as many columns as fit, read downwards."""
    columns = _columns(names, _terminal_width() - _INDENT)
    print(f"{kind}:")
    for row in range(len(columns[0])):
        cells = []
        for column in columns:
            if row < len(column):
                cells.append(column[row].ljust(_width(column)))
        print(f"{'':{_INDENT}}{''.join(cells)}".rstrip())
    print()


def _columns(names: Sequence[str], width: int) -> list[Sequence[str]]:
    """The names as columns of equal lengths but for the last, as many as fit in ``width``."""
    for rows in range(1, len(names)):
        columns = [names[first : first + rows] for first in range(0, len(names), rows)]
        if sum(map(_width, columns)) - _GAP <= width:
            return columns
    return [names]


def _width(column: Sequence[str]) -> int:
    return max(map(len, column)) + _GAP


def _print_forms() -> None:
    """The findings with a word in their code, and what this may be."""
    from asyncli import findings

    print("Findings with a word in their code:")
    for entry in sorted(findings.CATALOGUE, key=lambda entry: entry.code):
        if "{" not in entry.code:
            continue
        pattern = re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), entry.code)
        print(
            textwrap.fill(
                f"{pattern}: {entry.values}",
                _terminal_width(),
                initial_indent=" " * _INDENT,
                subsequent_indent=" " * 2 * _INDENT,
                break_on_hyphens=False,
            )
        )
    print()


def _terminal_width() -> int:
    """The width of the terminal, or that of the variable COLUMNS; 100 without either."""
    return shutil.get_terminal_size((100, 24)).columns


def _texts(term: str, by_form: Mapping[str, str]) -> list[str]:
    """What is known of the term, or of the first of its parts of which something is."""
    for part in [term, *re.split(r"[,():]+", term)]:
        texts = _explained(part.strip(), by_form)
        if texts:
            return texts
    return []


def _near(term: str, names: Iterable[str]) -> str:
    """Asks for the name that ``term`` misspells, one of ``names`` or a key of the plan; "" if none
    is near.
    """
    from asyncli.cli.soak import command as soak

    keys = [parameter.name or "" for parameter in soak.params]
    by_form = {_form(name): name for name in (*names, *keys)}
    for form in difflib.get_close_matches(_form(term), by_form, n=1):
        return f"did you mean {by_form[form]!r}? "
    return ""


def _explained(term: str, by_form: Mapping[str, str]) -> list[str]:
    """What is known of it: as a term of the report, then as a code; else as code in a paragraph,
    else as a number, else as a key of the plan.
    """
    form = _form(term)
    texts = []
    if form in by_form:
        texts.append(by_form[form])
    of_code = list(_of_code(term, exact=bool(texts)))
    if of_code:
        texts.append("\n".join(of_code))
    if texts:
        return texts
    of_number = _of_number(term, by_form)
    if of_number:
        return of_number
    for text in by_form.values():
        if f"`{term}`" in text:
            return [text]
    return _of_key(term)


def _of_key(term: str) -> list[str]:
    """The help of a key of the plan."""
    from asyncli.cli.soak import command as soak

    name = re.sub("[ -]", "_", term.lower())
    texts = []
    for option in soak.params:
        if isinstance(option, click.Option) and option.name == name:
            help_text = " ".join((option.help or "").split())
            texts.append(f"{main_flag(option)} {option.metavar or ''}: {help_text}")
    return texts


def _of_number(term: str, by_form: Mapping[str, str]) -> list[str]:
    """What a number of a run's JSON is, as in ``drift.server_user``, and the paragraphs that name
    it; without any the term of its first word. Of a number of an event that of its last word
    suffices, and a part of an event is explained by its term.
    """
    from asyncli.report.summary import Summary
    from asyncli.report.thresholds import about

    key = term
    if "." not in term:
        key = _key_of_event(term)
    if not key:
        return []
    try:
        meaning = about(key, Summary)
    except ValueError:
        return _of_part_of_event(term, by_form)
    texts = [f"{term}: {meaning}"]
    names = (f"`{term}`", f"`{key.rpartition('.')[2]}`")
    for text in by_form.values():
        for paragraph in text.split("\n\n"):
            is_named = any(name in paragraph for name in names)
            if is_named and paragraph not in texts:
                texts.append(paragraph)
    if len(texts) > 1:
        return texts
    of_first_word = by_form.get(term.partition(".")[0])
    if of_first_word:
        texts.append(of_first_word)
    return texts


def _key_of_event(word: str) -> str:
    """The key of the first event's number with this last word, if no other number of a run's JSON
    has it; else "".
    """
    from asyncli.report.summary import Summary
    from asyncli.report.thresholds import keys

    ending = [key for key in keys(Summary) if key.endswith(f".{word}")]
    if len(ending) != 1 or not ending[0].startswith("events."):
        return ""
    return ending[0].replace("*", "1")


def _of_part_of_event(key: str, by_form: Mapping[str, str]) -> list[str]:
    """The term of a part of an event, as in ``events.1.in_vain.received``."""
    words = key.split(".")
    if words[0] == "churn":
        words.insert(0, "events")
    if words[0] != "events" or len(words) < 3:
        return []
    term = by_form.get(_form(words[2]))
    return [] if term is None else [term]


def _of_code(code: str, *, exact: bool) -> Iterator[str]:
    """The meanings of a finding, a cause or a diagnosis. ``exact``: not of a code with fields."""
    from asyncli import findings
    from asyncli.findings import bottleneck, loss_causes
    from asyncli.findings.losses import causes

    own = [f"{code} (a cause): {text}" for text in causes(code)]
    for kind, catalogue in (("a diagnosis", loss_causes), ("a bottleneck", bottleneck)):
        if code not in catalogue.CODES:
            continue
        for evidence, remedy, _ in catalogue.meanings(code):
            text = f"{code} ({kind}): {evidence}"
            own.append(f"{text}; remedy: {remedy}" if remedy else text)
    entries = list(findings.entries_of(code))
    if own or exact:
        # A cause such as generator_lost may match a code that contains a field.
        entries = [entry for entry in entries if entry.code == code]
    if not entries:
        # capacity names what delayed asyncli without the prefix.
        delays = f"generator_saturated_{code}"
        entries = [entry for entry in findings.CATALOGUE if entry.code == delays]
    for entry in entries:
        yield f"{code} ({entry.severity}): {entry.meaning}"
    yield from own


def _form(term: str) -> str:
    """``term`` in small letters, without articles, plurals and numbers."""
    text = " ".join(re.sub("[_-]", " ", term.lower()).replace("²", "2").split())
    without_articles = re.sub(r"\b(?:an?|the) (?=\w)", "", text)
    without_numbers = re.sub(r"\b\d[\d.,]*(?!\w)", "n", without_articles)
    return re.sub(r"(?<=[^\Ws])s\b", "", without_numbers)


def terms() -> dict[str, str]:
    """Terms and what docs/reference/terms.md says of each: the section of that title, and the
    paragraphs that have it in bold.
    """
    from asyncli.lab.resources import document

    method = document("reference/terms.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (.+)$", method, flags=re.MULTILINE)
    sections = [text.strip() for text in parts[1::2]]
    texts = dict(zip(parts[::2], sections, strict=True))
    names = {_form(name): name for name in texts}
    for paragraph in "\n\n".join(texts.values()).split("\n\n"):
        for bold in re.findall(r"\*\*(.+?)\*\*", paragraph, re.DOTALL):
            name = names.setdefault(_form(bold), " ".join(bold.split()))
            if name not in texts:
                texts[name] = paragraph
            elif paragraph not in texts[name]:
                texts[name] = f"{texts[name]}\n\n{paragraph}"
    return texts


def codes() -> tuple[list[str], list[str]]:
    """The codes of all findings, and those of all causes and diagnoses."""
    from asyncli import findings
    from asyncli.findings import bottleneck, loss_causes
    from asyncli.findings.losses import CONNECT_WORDS, LOSS_WORDS

    for module in pkgutil.iter_modules(findings.__path__, "asyncli.findings."):
        importlib.import_module(module.name)
    diagnoses = {*LOSS_WORDS, *CONNECT_WORDS, *loss_causes.CODES, *bottleneck.CODES}
    return sorted({entry.code for entry in findings.CATALOGUE}), sorted(diagnoses)
