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
#: The built-in fields, and one of heartbeats whose answer repeats it: eight hex digits, other ones
#: in each heartbeat.
FIELDS = ("n", "random")
NONCE = "nonce"


class Template:
    """A template. ``{n}``: the connection's number in the whole run, from 0; ``{n:06d}``: in six
    digits; ``{random}``: six hex digits, the same for all connections of a run; ``{{``: a brace.
    Other names are columns of the run's data. Raises ``ValueError``.
    """

    def __init__(self, text: str) -> None:
        self.names = _field_names(text)
        #: The text differs between connections.
        self.varies = bool(self.names - {"random"})
        self.text = text
        self._format_string = text

    def fill(self, values: Mapping[str, object]) -> str:
        return self._format_string.format_map(values)


class OpenTemplate(Template):
    """A template that may contain other braces, such as JSON: only ``{n}``, ``{n:06d}``,
    ``{random}`` and ``columns`` are fields. A field in double braces is sent in single ones.
    Everything else is sent unchanged.
    """

    def __init__(self, text: str, columns: Iterable[str] = ()) -> None:
        known = {*FIELDS, *columns}
        parts = []
        end = 0
        for field in _FIELD.finditer(text):
            if field[2] in known and _is_valid_format(field[2], field[3] or ""):
                parts += [_escape_braces(text[end : field.start()]), field[0]]
                end = field.end()
        parts.append(_escape_braces(text[end:]))
        super().__init__("".join(parts))
        self.text = text


def unknown_fields(text: str, columns: Iterable[str] | None) -> Iterable[str]:
    """What looks like a field in an open template and is none: with ``columns`` any other name in
    braces; without, only built-in fields with an invalid format.
    """
    known = {*FIELDS, *(columns or ())}
    for field in _FIELD.finditer(text):
        double_brace, name, form = field.groups()
        if double_brace:
            continue
        if name in known and _is_valid_format(name, form or ""):
            continue
        # Without columns, a name that is not built in may be plain text.
        if name in known or columns is not None:
            yield field[0]


def _field_names(text: str) -> frozenset[str]:
    """The names of a template's fields. Raises ``ValueError`` for an invalid one."""
    names = set()
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        raise ValueError(
            f"{shown(text)} has an unpaired brace; write {{{{ or }}}} for a brace"
        ) from None
    for _, name, form, conversion in parts:
        if name is None:  # plain text
            continue
        is_name = re.fullmatch(NAME, name) is not None
        if conversion or not is_name or not _is_valid_format(name, form or ""):
            field = f"{{{name}{_after('!', conversion)}{_after(':', form)}}}"
            raise ValueError(
                f"{shown(text)}: {shown(field)} is not a field; "
                "write {n}, {n:06d} or {random}"
            )
        names.add(name)
    return frozenset(names)


def _after(mark: str, text: str | None) -> str:
    if not text:
        return ""
    return f"{mark}{text}"


def _is_valid_format(name: str, form: str) -> bool:
    if name == "n":
        return _FORMAT.fullmatch(form) is not None
    return not form


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


class Data(msgspec.Struct, frozen=True):
    """The columns of a data file, in memory that a host's workers share: ``texts`` has the rows one
    after the other, in UTF-8, with NUL between values; ``ends`` the offset of each row's end (64
    bits, this machine's byte order).
    """

    columns: tuple[str, ...]
    texts: bytes
    ends: bytes

    @property
    def rows(self) -> int:
        return len(self.ends) // 8


class Fields:
    """The fields' values for each row of a connection table. ``number``: a row -> its connection's
    number in the whole run.
    """

    def __init__(
        self, number: Callable[[int], int] = int, random: str = "", data: Data | None = None
    ) -> None:
        self._number = number
        self._random = random
        if data is None:
            data = Data((), b"", b"")
        self.columns = data.columns
        self._texts = data.texts
        self._ends = memoryview(data.ends).cast("Q")

    def of(self, row: int) -> dict[str, object]:
        """Field -> value, as text with one character per byte (see :class:`Filled`)."""
        n = self._number(row)
        values: dict[str, object] = {"n": n, "random": self._random}
        if self.columns:
            values.update(
                zip(self.columns, self._row(n).decode("latin-1").split("\0"), strict=True)
            )
        return values

    def of_data(self, row: int) -> list[str]:
        """The values of the data's columns; none without data."""
        if not self.columns:
            return []
        return self._row(self._number(row)).decode(errors="replace").split("\0")

    def _row(self, n: int) -> bytes:
        begin = self._ends[n - 1] if n else 0
        return self._texts[begin : self._ends[n]]


class Filled:
    """Bytes from a template (an open one by default) for each row of a connection table. They are
    made on demand; nothing is cached if rows differ. ``nonce``: gives the bytes of a row's
    ``{nonce}``, if that is a field.
    """

    def __init__(
        self, data: bytes, fields: Fields, template: Callable[[str], Template] | None = None,
        nonce: Callable[[int], bytes] | None = None,
    ) -> None:  # fmt: skip
        # Of any encoding: latin-1 maps each byte to a character and back.
        text = data.decode("latin-1")
        if template is not None:
            self._template = template(text)
        elif nonce is not None:
            self._template = OpenTemplate(text, (*fields.columns, NONCE))
        else:
            self._template = OpenTemplate(text, fields.columns)
        self.varies = self._template.varies
        #: The text has a ``{nonce}``.
        self.numbered = NONCE in self._template.names
        self._fields = fields
        self._nonce = nonce
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
    if any(text.varies for text in texts):
        return None
    if len({text(0) for text in texts}) != 1:
        return None
    return texts[0](0)
