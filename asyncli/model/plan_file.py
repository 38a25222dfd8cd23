"""Plans in TOML files."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

from asyncli.model.errors import PlanError
from asyncli.model.plan import KEYS, SECRET_FILES, Layer
from asyncli.model.units import shown

# A plan file has a few lines. Python's TOML parser takes seconds for 30,000 bytes of dots.
LONGEST_FILE = 16_384
_NAME_A_PLAN = "name a TOML file, or one of asyncli's plans: smoke, 100k, overnight, bench"


def read_plan_file(path: str | os.PathLike[str], keys: Iterable[str] = (*KEYS, *SECRET_FILES, "ramp")) -> Layer:
    """Read a TOML plan with ``keys`` as a layer. Raises :class:`PlanError` for an unreadable file, bad TOML or an unknown key."""
    known = sorted(keys)
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise PlanError(f"{path}: is longer than {LONGEST_FILE:,} bytes; {_NAME_A_PLAN}")
        values = tomllib.loads(data.decode().replace("\r\n", "\n"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror}); {_NAME_A_PLAN}") from None
    except (ValueError, RecursionError) as error:  # bad TOML, not UTF-8, a number of 4,301 digits, endlessly nested lists
        why = " ".join(str(error).split(";")[0].split())[:200]
        raise PlanError(f"{path}: is not TOML ({why}); write lines like hold = \"10m\"") from None
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(known)}"
            raise PlanError(f"{path}: unknown key {shown(key)}; {hint}")
    return Layer(where=f"{str(path).replace('{', '{{').replace('}', '}}')}: {{key}}", values=values)
