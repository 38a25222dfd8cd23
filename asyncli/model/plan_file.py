"""Plans in TOML files."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from asyncli.model.errors import PlanError
from asyncli.model.plan import KEYS, SECRET_FILES, Layer
from asyncli.model.planned_events import parse_events, planned_event
from asyncli.model.private_values import SENT_FILES
from asyncli.model.units import shown

# A plan file has a few lines. Python's TOML parser takes seconds for 30,000 bytes of dots.
LONGEST_FILE = 16_384
#: The built-in plans of a soak.
SOAKS = ("smoke", "100k", "overnight")
_ONLY_NAMED_BY_A_FLAG = "a file whose content is sent is named on the command line only"
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*=""")


def read_plan_file(
    path: str | os.PathLike[str],
    keys: Iterable[str] = (*KEYS, *SECRET_FILES, "ramp"),
    built_in: Sequence[str] = SOAKS,
    flags: Iterable[str] = (),
) -> Layer:
    """Read a TOML plan with ``keys`` as a layer. Raises :class:`PlanError` for an unreadable file,
    bad TOML, an unknown key, or one that names a file whose content is sent: the plan may be a
    stranger's, and so may its URL.

    For its errors: ``built_in`` are the plans that the command has, ``flags`` its flags, ``--out``.
    """
    known = sorted({*keys} - {*SENT_FILES})
    path = Path(path)
    remedy = f"name a TOML file, or a built-in plan: {', '.join(built_in)}"
    text = ""
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise PlanError(f"{path}: is longer than {LONGEST_FILE:,} bytes; {remedy}")
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        values = tomllib.loads(text)
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError) as error:
        # Bad TOML, not UTF-8, a number of 4,301 digits, endlessly nested lists.
        why = " ".join(str(error).split(";")[0].split())[:200]
        repeated = _repeated_key(text) if why.startswith("Cannot overwrite a value") else ""
        if repeated:
            raise PlanError(f"{path}: {repeated}; leave one out") from None
        raise PlanError(f'{path}: is not TOML ({why}); write lines like hold = "10m"') from None
    for key, value in values.items():
        if key not in known:
            remedy = _instead(key, value, known, flags)
            raise PlanError(f"{path}: unknown key {shown(key)}; {remedy}")
        _require_harmless(path, key, value)
    escaped_path = str(path).replace("{", "{{").replace("}", "}}")
    return Layer(where=f"{escaped_path}: {{key}}", values=values)


def _require_harmless(path: Path, key: str, value: object) -> None:
    """Raise :class:`PlanError` for what a stranger's plan must not do on this host."""
    if key == "events" and _runs_a_command(value):
        raise PlanError(
            f"{path}: {key}: a plan file runs no commands, since it may be a stranger's; write "
            "--at TIME 'run COMMAND' on the command line"
        )
    if key == "body" and isinstance(value, str) and value.startswith("@"):
        raise PlanError(
            f"{path}: {key}: {_ONLY_NAMED_BY_A_FLAG}; "
            f"write --body {shown(value)}, or the text itself"
        )


def _runs_a_command(events: object) -> bool:
    """Whether one of the events of a plan file is a run; what is no event is refused later."""
    try:
        parsed = [planned_event(text) for text in parse_events(events)]
    except ValueError:
        return False
    return any(event.do == "run" for event in parsed)


def _repeated_key(text: str) -> str:
    """Which key stands twice, and on which lines; "" if none does."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _KEY.match(line)
        if match is None:
            continue
        key = match[1]
        if key in lines:
            return f"{key} stands twice, on lines {lines[key]} and {number}"
        lines[key] = number
    return ""


def _instead(key: str, value: object, known: Sequence[str], flags: Iterable[str]) -> str:
    """What to write instead of an unknown key."""
    if isinstance(value, dict):
        return f"a plan has no sections, so leave out the line [{key}]"
    flag = f"--{key.replace('_', '-')}"
    if key in SENT_FILES:
        return f"{_ONLY_NAMED_BY_A_FLAG}; write {flag} FILE"
    if flag in flags:
        return f"{flag} is an option of the command line only"
    similar = difflib.get_close_matches(key, known, n=1)
    if similar:
        return f"did you mean {similar[0]!r}?"
    return f"the keys are {', '.join(known)}"
