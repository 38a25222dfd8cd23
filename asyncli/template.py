"""Texts with fields that are filled in for each connection."""

from __future__ import annotations

import re
import string

from asyncli.units import shown

_FORMAT = re.compile(r"(0?[1-9][0-9]?)?[dx]?")


class Template:
    """``{n}`` is the connection's number in the whole run, from 0; ``{n:06d}`` six digits of it; ``{random}`` six hex digits that
    all connections of a run share; ``{{`` a brace. Raises ``ValueError``.
    """

    def __init__(self, text: str) -> None:
        try:
            fields = [field for field in string.Formatter().parse(text) if field[1] is not None]
        except ValueError:
            raise ValueError(f"{shown(text)} has a single brace in it; write {{{{ or }}}} for a brace") from None
        for _, name, form, conversion in fields:
            if name not in ("n", "random") or conversion or not (_FORMAT.fullmatch(form or "") if name == "n" else not form):
                field = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}"
                raise ValueError(f"{shown(text)}: {shown(field)} is no field; write {{n}}, {{n:06d}} or {{random}}")
        #: Each connection has another text.
        self.varies = any(name == "n" for _, name, _, _ in fields)
        self._text = text

    def fill(self, n: int, random: str) -> str:
        return self._text.format(n=n, random=random)
