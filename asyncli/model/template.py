"""Templates: texts with fields that are filled in for each connection."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from asyncli.model.units import shown

_FORMAT = re.compile(r"(0?[1-9][0-9]?)?[dx]?")
#: The name of a field, and of a column.
NAME = r"[A-Za-z_][-A-Za-z0-9_]*"
# In single or double braces.
_FIELD = re.compile(rf"\{{(\{{)?({NAME})(?::([^{{}}\r\n]*))?\}}(?(1)\}})")
#: The built-in fields, and one of heartbeats whose answer repeats it: eight hex digits, other ones in each heartbeat.
FIELDS = ("n", "random")
NONCE = "nonce"


class Template:
    """A template. ``{n}``: the connection's number in the whole run, from 0; ``{n:06d}``: in six digits; ``{random}``: six hex
    digits, the same for all connections of a run; ``{{``: a brace. Other names are columns of the run's data. Raises
    ``ValueError``."""

    def __init__(self, text: str) -> None:
        try:
            fields = [field for field in string.Formatter().parse(text) if field[1] is not None]
        except ValueError:
            raise ValueError(f"{shown(text)} has an unpaired brace; write {{{{ or }}}} for a brace") from None
        for _, name, form, conversion in fields:
            if conversion or re.fullmatch(NAME, name or "") is None or not _valid_format(name or "", form or ""):
                field = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}"
                raise ValueError(f"{shown(text)}: {shown(field)} is not a field; write {{n}}, {{n:06d}} or {{random}}")
        self.names = frozenset(name for _, name, _, _ in fields if name)
        #: The text differs between connections.
        self.varies = bool(self.names - {"random"})
        self._format_string = self.text = text

    def fill(self, values: Mapping[str, object]) -> str:
        return self._format_string.format_map(values)


class OpenTemplate(Template):
    """A template that may contain other braces, such as JSON: only ``{n}``, ``{n:06d}``, ``{random}`` and ``columns`` are fields.
    A field in double braces is sent in single ones. Everything else is sent unchanged."""

    def __init__(self, text: str, columns: Iterable[str] = ()) -> None:
        known, parts, at = {*FIELDS, *columns}, [], 0
        for field in _FIELD.finditer(text):
            if field[2] in known and _valid_format(field[2], field[3] or ""):
                parts += [_escape_braces(text[at : field.start()]), field[0]]
                at = field.end()
        super().__init__("".join(parts) + _escape_braces(text[at:]))
        self.text = text


def unknown_fields(text: str, columns: Iterable[str] | None) -> Iterable[str]:
    """What looks like a field in an open template and is none: with ``columns`` any other name in braces; without, only built-in
    fields with an invalid format."""
    known = {*FIELDS, *(columns or ())}
    for field in _FIELD.finditer(text):
        if not field[1] and (not _valid_format(field[2], field[3] or "") if field[2] in known else columns is not None):
            yield field[0]


def _valid_format(name: str, form: str) -> bool:
    return _FORMAT.fullmatch(form) is not None if name == "n" else not form


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


class Data(msgspec.Struct, frozen=True):
    """The columns of a data file, in memory that a host's workers share: ``texts`` has the rows one after the other, in UTF-8,
    with NUL between values; ``ends`` the offset of each row's end (64 bits, this machine's byte order)."""

    columns: tuple[str, ...]
    texts: bytes
    ends: bytes

    @property
    def rows(self) -> int:
        return len(self.ends) // 8


class Fields:
    """The fields' values for each row of a connection table. ``number``: a row -> its connection's number in the whole run."""

    def __init__(self, number: Callable[[int], int] = int, random: str = "", data: Data | None = None) -> None:
        self._number, self._random, self.columns = number, random, () if data is None else data.columns
        self._texts, self._ends = (b"", memoryview(b"")) if data is None else (data.texts, memoryview(data.ends).cast("Q"))

    def of(self, row: int) -> dict[str, object]:
        """Field -> value, as text with one character per byte (see :class:`Filled`)."""
        n = self._number(row)
        values: dict[str, object] = {"n": n, "random": self._random}
        if self.columns:
            values.update(zip(self.columns, self._row(n).decode("latin-1").split("\0"), strict=True))
        return values

    def of_data(self, row: int) -> list[str]:
        """The values of the data's columns; none without data."""
        return self._row(self._number(row)).decode(errors="replace").split("\0") if self.columns else []

    def _row(self, n: int) -> bytes:
        return self._texts[self._ends[n - 1] if n else 0 : self._ends[n]]


class Filled:
    """Bytes from a template (an open one by default) for each row of a connection table. They are made on demand; nothing is
    cached if rows differ. ``nonce``: gives the bytes of a row's ``{nonce}``, if that is a field."""

    def __init__(
        self, data: bytes, fields: Fields, template: Callable[[str], Template] | None = None,
        nonce: Callable[[int], bytes] | None = None,
    ) -> None:  # fmt: skip
        # Of any encoding: latin-1 maps each byte to a character and back.
        text, own = data.decode("latin-1"), (NONCE,) if nonce is not None else ()
        self._template = OpenTemplate(text, (*fields.columns, *own)) if template is None else template(text)
        self.varies = self._template.varies
        #: The text has a ``{nonce}``.
        self.numbered = NONCE in self._template.names
        self._fields, self._nonce = fields, nonce
        self._same = b"" if self.varies else self._template.fill(fields.of(0)).encode("latin-1")

    def __call__(self, row: int) -> bytes:
        if not self.varies:
            return self._same
        values = self._fields.of(row)
        if self.numbered and self._nonce is not None:
            values[NONCE] = self._nonce(row).hex()
        return self._template.fill(values).encode("latin-1")


def same_for_all(texts: Sequence[Filled]) -> bytes | None:
    """The bytes, if they are the same for all templates and rows; else None."""
    return texts[0](0) if not any(text.varies for text in texts) and len({text(0) for text in texts}) == 1 else None
