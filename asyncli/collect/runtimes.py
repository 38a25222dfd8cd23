"""Recognises the runtime of a server's process: by its executable, its mapped libraries, its
command line and its environment. No program is run, and of the environment only numbers are kept.

Sources: proc(5); runtime (Go: GOGC, GOMEMLIMIT); java(1); node(1). All of it may be hostile, or end
meanwhile: what cannot be read, or is no such thing, is unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from asyncli.collect.elf import Elf, NotElfError, go_version
from asyncli.collect.procfs import PROC, link
from asyncli.model.runtimes import Runtime
from asyncli.model.trust import read_regular

# A process may have 65,530 maps (vm.max_map_count), of some 100 bytes each.
_MOST_OF_MAPS = 8 << 20
# ARG_MAX is 2 MB by default.
_MOST_OF_ARGUMENTS = 2 << 20
# Beside an executable: a header and a list of keys, of some kB.
_LONGEST_FILE = 64 << 10
# Of the 5 MB of names that Node exports for its add-ons, the first is at 10 kB.
_SEARCHED_NAMES = 1 << 20
_OF_NODE = b"_ZN4node"
# What a program of .NET exports that has its runtime in it: one file, or compiled in advance.
_OF_DOTNET = (b"DotNetRuntimeInfo", b"DotNetRuntimeDebugHeader")
_VERSION = r"(\d+(?:\.\d+){0,3})"
_DEFAULT_GOGC = 100


class _Sign(NamedTuple):
    """A file name that tells a runtime. The pattern's group, if any, is the version."""

    kind: str
    pattern: re.Pattern[str]
    collected: bool = True


# By the executable's own name. Python and Ruby are also linked statically.
_PROGRAMS = (
    _Sign("beam", re.compile(r"beam(?:\.\w+)?")),
    _Sign("deno", re.compile("deno")),
    _Sign("bun", re.compile("bun")),
    _Sign("python", re.compile(r"python(\d\.\d+)?[\d.]*t?d?"), collected=False),
    _Sign("ruby", re.compile(r"ruby(\d\.\d+)?[\d.]*")),
    _Sign("php", re.compile(r"php(?:-fpm|-cgi)?(\d\.\d+)?[\d.]*"), collected=False),
)
# By a library that is mapped.
_LIBRARIES = (
    _Sign("jvm", re.compile(r"libjvm\.so")),
    _Sign("dotnet", re.compile(r"libcoreclr\.so")),
    _Sign("node", re.compile(r"libnode\.so\.?\d*")),
    _Sign("python", re.compile(r"libpypy[\w.-]*\.so")),
    _Sign("python", re.compile(rf"libpython{_VERSION}\w*\.so[\d.]*"), collected=False),
    _Sign("ruby", re.compile(rf"libruby[\w.-]*\.so\.?{_VERSION}?")),
    _Sign("php", re.compile(rf"libphp{_VERSION}?\.so"), collected=False),
)
_BEAM_VERSION = re.compile(rf"/erts-{_VERSION}/bin/[^/]+")
_DOTNET_VERSION = re.compile(rf".*/Microsoft\.NETCore\.App/{_VERSION}[^/]*/libcoreclr\.so")
_JAVA_VERSION = re.compile(rf'^JAVA_VERSION="{_VERSION}', re.MULTILINE)
_NODE_VERSION = re.compile(r"^#define NODE_(MAJOR|MINOR|PATCH)_VERSION (\d{1,4})$", re.MULTILINE)


def runtime_of(pid: int, proc: Path = PROC) -> Runtime:
    """The runtime of a process; an unknown one if it has none, has ended or is hidden."""
    try:
        recognised = _recognise(pid, proc)
    except (OSError, NotElfError):
        return Runtime()
    if recognised.kind == "":
        return recognised
    return _with_settings(recognised, pid, proc)


def _recognise(pid: int, proc: Path) -> Runtime:
    """By the executable's name, by the executable, by what it has mapped: the surest first."""
    exe = link(pid, "exe", proc)
    if exe is None:
        return Runtime()
    by_name = _by_name(os.path.basename(exe), _PROGRAMS)
    if by_name.kind == "beam":
        return _with_version(by_name, _first_group(_BEAM_VERSION.search(exe)))
    if by_name.kind != "":
        return by_name
    in_executable = _by_executable(f"{proc}/{pid}/exe")
    if in_executable.kind == "node":
        return _with_version(in_executable, _node_version(exe, pid, proc))
    if in_executable.kind != "":
        return in_executable
    return _by_libraries(pid, proc)


def _by_name(name: str, signs: Iterable[_Sign]) -> Runtime:
    for sign in signs:
        match = sign.pattern.fullmatch(name)
        if match is not None:
            return Runtime(sign.kind, _first_group(match), sign.collected)
    return Runtime()


def _first_group(match: re.Match[str] | None) -> str:
    """What a pattern's first group matched; "" without."""
    if match is None or not match.re.groups:
        return ""
    return match[1] or ""


def _with_version(known: Runtime, version: str) -> Runtime:
    return Runtime(known.kind, version, known.collected)


def _by_executable(path: str) -> Runtime:
    """A program that has its runtime in itself: of Go, Node or .NET.

    Raises OSError. Another file than an ELF file has none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        elf = Elf(descriptor)
        version = go_version(elf)
        if version is not None:
            return Runtime("go", version, collected=True)
        names = elf.beginning(".dynstr", _SEARCHED_NAMES)
    except NotElfError:
        return Runtime()
    finally:
        os.close(descriptor)
    if _OF_NODE in names:
        return Runtime("node", collected=True)
    if any(name in names for name in _OF_DOTNET):
        return Runtime("dotnet", collected=True)
    return Runtime()


def _by_libraries(pid: int, proc: Path) -> Runtime:
    """By the first library in /proc/PID/maps that is a runtime's. Raises OSError."""
    text = _read(f"{proc}/{pid}/maps", _MOST_OF_MAPS).decode("utf-8", "replace")
    for path in _mapped(text):
        known = _by_name(os.path.basename(path), _LIBRARIES)
        if known.kind == "jvm":
            return _with_version(known, _java_version(path, pid, proc))
        if known.kind == "dotnet":
            return _with_version(known, _first_group(_DOTNET_VERSION.fullmatch(path)))
        if known.kind == "node":
            exe = link(pid, "exe", proc) or ""
            return _with_version(known, _node_version(exe, pid, proc))
        if known.kind != "":
            return known
    return Runtime()


def _mapped(text: str) -> Iterator[str]:
    """The different files of /proc/PID/maps, in its order."""
    before = ""
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or fields[5] == before or not fields[5].startswith("/"):
            continue
        before = fields[5]
        yield before.removesuffix(" (deleted)")


# Versions that stand in a file beside the executable.


def _java_version(library: str, pid: int, proc: Path) -> str:
    """By the file ``release`` of Java's folder, which has its libjvm.so in lib/server."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(library)))
    return _first_group(_JAVA_VERSION.search(_beside(f"{folder}/release", pid, proc)))


def _node_version(exe: str, pid: int, proc: Path) -> str:
    """By the header that Node installs for its add-ons."""
    folder = os.path.dirname(os.path.dirname(exe))
    header = _beside(f"{folder}/include/node/node_version.h", pid, proc)
    numbers = dict(_NODE_VERSION.findall(header))
    if len(numbers) < 3:
        return ""
    return f"{numbers['MAJOR']}.{numbers['MINOR']}.{numbers['PATCH']}"


def _beside(path: str, pid: int, proc: Path) -> str:
    """The text of a file in the process's own file system, as a container has; "" without it. It
    may be any file: only the numbers of a version are taken from it.
    """
    try:
        data = read_regular(f"{proc}/{pid}/root{path}", _LONGEST_FILE)
    except OSError:
        return ""
    return data.decode("utf-8", "replace")


# What it was started with.


def _with_settings(known: Runtime, pid: int, proc: Path) -> Runtime:
    """With the limits of the heap that its arguments and its environment set."""
    arguments = _words(f"{proc}/{pid}/cmdline")
    environment = _variables(_words(f"{proc}/{pid}/environ"))
    gogc = None
    limit = None
    if known.kind == "go" and environment is not None:
        gogc = _gogc(environment.get("GOGC", ""))
        limit = _bytes_of_go(environment.get("GOMEMLIMIT", ""))
    if known.kind == "jvm":
        limit = java_heap_limit(arguments or [], environment or {})
    if known.kind == "node":
        limit = node_heap_limit(arguments or [], environment or {})
    return Runtime(known.kind, known.version, known.collected, gogc, limit)


def _words(path: str) -> list[str] | None:
    """The texts of a file that end in NUL; None if it cannot be read."""
    try:
        data = _read(path, _MOST_OF_ARGUMENTS)
    except OSError:
        return None
    return data.decode("utf-8", "replace").rstrip("\0").split("\0")


#: The variables that set a limit. No other one is looked at.
_VARIABLES = (
    "GOGC",
    "GOMEMLIMIT",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "NODE_OPTIONS",
)


def _variables(words: Sequence[str] | None) -> dict[str, str] | None:
    """The variables of :data:`_VARIABLES`; None if the environment cannot be read. Of two with one
    name the first counts, as for getenv(3).
    """
    if words is None:
        return None
    variables: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name in _VARIABLES:
            variables.setdefault(name, value)
    return variables


def _gogc(text: str) -> int | None:
    """GOGC in percent; -1: off; 100 where it is not set. A text that is no number counts as not
    set (readGOGC of runtime/mgcpacer.go).
    """
    if text == "off":
        return -1
    if re.fullmatch(r"-?\d{1,9}", text):
        return max(-1, int(text))
    return _DEFAULT_GOGC


def _bytes_of_go(text: str) -> int | None:
    """GOMEMLIMIT in bytes: a number with a unit of B, KiB, MiB, GiB or TiB; None: no limit."""
    match = re.fullmatch(r"(\d{1,19})(?:([KMGT])iB|B)?", text)
    if match is None:
        return None
    limit = int(match[1]) << _shift(match[2] or "")
    # Without a limit it is the largest number.
    if limit >= 2**63 - 1:
        return None
    return limit


def _shift(unit: str) -> int:
    """The power of two of a unit: 10 of "K"; 0 of ""."""
    return 10 * " KMGT".index(unit.upper() or " ")


def java_heap_limit(arguments: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """-Xmx of Java in bytes, or -XX:MaxHeapSize, the last one in the order in which Java reads
    them; None without.
    """
    options = environment.get("JAVA_TOOL_OPTIONS", "").split()
    options += environment.get("JDK_JAVA_OPTIONS", "").split()
    options += _options(arguments, _JAVA_TAKES_VALUE)
    options += environment.get("_JAVA_OPTIONS", "").split()
    limit = None
    for option in options:
        match = re.fullmatch(r"-(?:Xmx|XX:MaxHeapSize=)(\d{1,15})([kmgtKMGT]?)", option)
        if match is not None:
            limit = int(match[1]) << _shift(match[2])
    return limit


def node_heap_limit(arguments: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """--max-old-space-size of Node, which is in MiB, as bytes; the last one; None without. V8 takes
    underscores for hyphens.
    """
    options = environment.get("NODE_OPTIONS", "").split()
    options += _options(arguments, _NODE_TAKES_VALUE)
    limit = None
    for option in options:
        match = re.fullmatch(r"--max-old-space-size=(\d{1,9})", option.replace("_", "-"))
        if match is not None:
            limit = int(match[1]) << 20
    # 0: V8 chooses.
    return limit or None


# The options whose value is the next argument, up to the program's own.
_JAVA_TAKES_VALUE = frozenset(
    {"-cp", "-classpath", "--class-path", "-p", "--module-path", "--add-modules"}
)
_NODE_TAKES_VALUE = frozenset({"-r", "--require", "--import", "--loader", "-C", "--conditions"})


def _options(arguments: Sequence[str], take_value: frozenset[str]) -> list[str]:
    """The runtime's own options: those before the program and its arguments."""
    options = []
    is_value = False
    for argument in arguments[1:]:
        if is_value:
            is_value = False
            continue
        if not argument.startswith("-") or argument in ("-", "--", "-jar", "-m", "--module"):
            break
        options.append(argument)
        is_value = argument in take_value
    return options


def _read(path: str, most: int) -> bytes:
    """The first ``most`` bytes of a file of /proc. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        parts = []
        left = most
        while left > 0:
            part = os.read(descriptor, min(left, 1 << 16))
            if not part:
                break
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)
