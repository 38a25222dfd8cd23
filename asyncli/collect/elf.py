"""Reads what an executable says of itself: sections of an ELF file, and the version of Go that
built it.

Sources: elf(5), and Go's debug/buildinfo. A file may be anything: at most :data:`_MOST_BYTES` of it
are read, and what is no such file has no sections.
"""

from __future__ import annotations

import os
import re
import struct
from typing import NamedTuple

# Node's names of symbols are 5 MB; what is looked for is at the beginning of each section.
_MOST_BYTES = 4 << 20
# Node has 41 sections and 12 segments.
_MOST_HEADERS = 512
_LONGEST_NAMES = 64 << 10
# PT_LOAD, PF_X and PF_W of elf(5).
_LOADED = 1
_EXECUTABLE = 1
_WRITABLE = 2
# The linker puts Go's header near the beginning of the data, at a multiple of 16 bytes.
_GO_MAGIC = b"\xff Go buildinf:"
_GO_ALIGNED = 16
_GO_HEADER = 32
_GO_SEARCHED = 1 << 20
# Flags of that header: the strings follow it (since Go 1.18); pointers have the high byte first.
_GO_INLINE = 2
_GO_BIG_ENDIAN = 1
_GO_VERSION = re.compile(rb"go(\d+(?:\.\d+){0,3}(?:(?:rc|beta)\d+)?)(?![.\w])")
_LONGEST_VERSION = 128


class Extent(NamedTuple):
    """A section or a segment: its address in memory, and where it is in the file (bytes)."""

    address: int
    offset: int
    size: int


class _Segment(NamedTuple):
    """A program header: p_type, p_flags, p_offset, p_vaddr, p_filesz."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int


class _Format(NamedTuple):
    """The fields of the headers, as of :mod:`struct`, and where they are in the file's header."""

    #: e_phoff, e_shoff.
    tables: str
    tables_at: int
    #: e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
    counts: str
    counts_at: int
    #: sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size.
    section: str
    segment: str
    #: The places of the fields of :class:`_Segment`.
    segment_places: tuple[int, ...]


# By EI_CLASS: addresses of 32 and of 64 bits.
_FORMATS = {
    1: _Format("II", 28, "5H", 42, "6I", "8I", (0, 6, 1, 2, 4)),
    2: _Format("QQ", 32, "5H", 54, "IIQQQQ", "IIQQQQQQ", (0, 1, 2, 3, 5)),
}


class NotElfError(Exception):
    """The file is no ELF file, or not a whole one."""


class Elf:
    """The sections and segments of the open file ``descriptor``.

    Raises :class:`NotElfError` for another file, also later, as it is read; OSError if it cannot be
    read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._left = _MOST_BYTES
        ident = self.read(0, 16)
        if len(ident) < 16 or not ident.startswith(b"\x7fELF"):
            raise NotElfError
        if ident[4] not in _FORMATS or ident[5] not in (1, 2):
            raise NotElfError
        self._format = _FORMATS[ident[4]]
        #: The byte order, as of :mod:`struct`.
        self._order = "<" if ident[5] == 1 else ">"
        segments_at, sections_at = self._unpack(self._format.tables, self._format.tables_at)
        counts = self._unpack(self._format.counts, self._format.counts_at)
        segment_size, segment_count, section_size, section_count, names_index = counts
        self._segments: list[_Segment] = []
        for fields in self._table(segments_at, segment_size, segment_count, self._format.segment):
            self._segments.append(_Segment(*(fields[n] for n in self._format.segment_places)))
        headers = self._table(sections_at, section_size, section_count, self._format.section)
        #: The sections by name; the first of those with the same name.
        self.sections = self._named(headers, names_index)

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes of the file, or those up to its end. Raises :class:`NotElfError` beyond the
        bound.
        """
        if size > self._left or not 0 <= offset < 1 << 62:
            raise NotElfError
        self._left -= size
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, size, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def beginning(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a section; none without it."""
        section = self.sections.get(name)
        if section is None:
            return b""
        return self.read(section.offset, min(size, section.size))

    def at_address(self, address: int, size: int) -> bytes:
        """So many bytes at an address of the loaded program. Raises :class:`NotElfError` where
        nothing is loaded from the file.
        """
        for segment in self._segments:
            inside = address - segment.address
            if segment.kind == _LOADED and 0 <= inside < segment.size:
                return self.read(segment.offset + inside, min(size, segment.size - inside))
        raise NotElfError

    def data(self) -> Extent | None:
        """The section of Go's build information; in a file without sections the first segment of
        data, which has it.
        """
        if self.sections:
            return self.sections.get(".go.buildinfo")
        for segment in self._segments:
            is_data = segment.flags & (_EXECUTABLE | _WRITABLE) == _WRITABLE
            if segment.kind == _LOADED and is_data and segment.size > 0:
                return Extent(segment.address, segment.offset, segment.size)
        return None

    def _named(self, headers: list[tuple[int, ...]], names_index: int) -> dict[str, Extent]:
        if names_index >= len(headers):
            return {}
        *_, names_at, names_size = headers[names_index]
        names = self.read(names_at, min(names_size, _LONGEST_NAMES))
        sections: dict[str, Extent] = {}
        for name_at, _, _, address, offset, size in headers:
            name, _, _ = names[name_at : name_at + 64].partition(b"\0")
            sections.setdefault(name.decode("ascii", "replace"), Extent(address, offset, size))
        return sections

    def _table(self, at: int, size: int, count: int, fields: str) -> list[tuple[int, ...]]:
        """The entries of a table of headers, which are ``size`` bytes apart."""
        wanted = struct.calcsize(self._order + fields)
        if count == 0:
            return []
        if size < wanted or size > 4 * wanted or count > _MOST_HEADERS:
            raise NotElfError
        data = self.read(at, size * count)
        if len(data) < size * count:
            raise NotElfError
        return [struct.unpack_from(self._order + fields, data, size * n) for n in range(count)]

    def _unpack(self, fields: str, at: int) -> tuple[int, ...]:
        size = struct.calcsize(self._order + fields)
        data = self.read(at, size)
        if len(data) < size:
            raise NotElfError
        return struct.unpack(self._order + fields, data)


def go_version(elf: Elf) -> str | None:
    """The version of Go that built a program: ``1.26.8``, "" if it is none of a release (devel);
    None if Go did not build it.

    Raises :class:`NotElfError` and OSError.
    """
    header_at = _go_header(elf)
    if header_at is None:
        return "" if ".note.go.buildid" in elf.sections else None
    try:
        text = _go_text(elf, header_at)
    except NotElfError:
        return ""
    match = _GO_VERSION.match(text)
    if match is None:
        return ""
    return match[1].decode("ascii")


def _go_text(elf: Elf, header_at: int) -> bytes:
    """The text of the version, as Go's build information has it: behind its header, or by a
    pointer.
    """
    header = elf.at_address(header_at, _GO_HEADER)
    if len(header) < _GO_HEADER:
        raise NotElfError
    if header[15] & _GO_INLINE:
        text = elf.at_address(header_at + _GO_HEADER, _LONGEST_VERSION)
        # A length of one byte: no version of Go is as long as 128 bytes.
        length = int.from_bytes(text[:1], "little")
        return text[1 : 1 + length]
    return _go_string(elf, header)


def _go_header(elf: Elf) -> int | None:
    """The address of Go's build information."""
    data = elf.data()
    if data is None:
        return None
    searched = elf.read(data.offset, min(data.size, _GO_SEARCHED))
    place = searched.find(_GO_MAGIC)
    while place >= 0:
        if place % _GO_ALIGNED == 0:
            return data.address + place
        place = searched.find(_GO_MAGIC, place + 1)
    return None


def _go_string(elf: Elf, header: bytes) -> bytes:
    """The version by the header's pointer to a string of Go: its address and its length."""
    size = header[14]
    order = ">" if header[15] & _GO_BIG_ENDIAN else "<"
    string_at, _ = _two_addresses(header[16:], size, order)
    text_at, length = _two_addresses(elf.at_address(string_at, 2 * size), size, order)
    return elf.at_address(text_at, min(length, _LONGEST_VERSION))


def _two_addresses(data: bytes, size: int, order: str) -> tuple[int, ...]:
    """The two addresses of ``size`` bytes at the beginning of ``data``."""
    if size not in (4, 8) or len(data) < 2 * size:
        raise NotElfError
    letter = "I" if size == 4 else "Q"
    return struct.unpack_from(f"{order}2{letter}", data)
