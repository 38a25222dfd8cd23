"""The runtime of a process: by real executables, and by files that may be anything."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.collect.elf import Elf, NotElfError, go_version
from asyncli.collect.runtimes import java_heap_limit, node_heap_limit, runtime_of
from asyncli.model.runtimes import Runtime

GO_SOURCE = 'package main\nimport "time"\nfunc main() { println("ready"); time.Sleep(time.Minute) }\n'


@contextmanager
def running(*argv: str, **environment: str) -> Iterator[int]:
    """The pid of a program whose first byte of output was read."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment}) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go on this host")
    folder = tmp_path_factory.mktemp("go")
    (folder / "main.go").write_text(GO_SOURCE, encoding="utf-8")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-o", "program", "main.go"], cwd=folder, env=environment, check=True)
    return folder / "program"


def test_python_counts_references() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert runtime_of(os.getpid()) == Runtime("python", version)


def test_a_native_program_has_no_runtime_and_neither_has_one_that_ended() -> None:
    with running("sh", "-c", "echo ready; exec sleep 60") as pid:
        assert runtime_of(pid) == Runtime()
    assert runtime_of(pid) == Runtime()


@pytest.mark.parametrize(
    ("environment", "gogc", "limit"),
    [
        ({}, 100, None),
        ({"GOGC": "50", "GOMEMLIMIT": "64MiB"}, 50, 64 << 20),
        ({"GOGC": "off", "GOMEMLIMIT": "off"}, -1, None),
        ({"GOGC": "a lot", "GOMEMLIMIT": "1000"}, 100, 1000),
    ],
)
def test_a_program_of_go_has_its_version_and_its_settings(
    go_program: Path, environment: dict[str, str], gogc: int, limit: int | None
) -> None:
    printed = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
    with running(str(go_program), **{"GOGC": "", "GOMEMLIMIT": "", **environment}) as pid:
        known = runtime_of(pid)
    assert f" go{known.version} " in printed
    assert known == Runtime("go", known.version, collected=True, gogc=gogc, heap_limit_bytes=limit)


def test_a_program_of_go_without_sections_is_known_by_its_data(go_program: Path, tmp_path: Path) -> None:
    data = bytearray(go_program.read_bytes())
    # e_shoff, and e_shnum and e_shstrndx, as sstrip leaves them.
    data[40:48] = bytes(8)
    data[60:64] = bytes(4)
    assert _go_version_of(tmp_path, bytes(data)) == _go_version_of(tmp_path, go_program.read_bytes())


def test_an_old_program_of_go_has_its_version_behind_a_pointer(tmp_path: Path) -> None:
    stored = Path("/usr/local/go/src/debug/buildinfo/testdata/go117/go117.base64")
    if not stored.is_file():
        pytest.skip("no sources of Go on this host")
    assert _go_version_of(tmp_path, base64.b64decode(stored.read_text(encoding="ascii"))) == "1.17"


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_both_formats_are_read_in_each_size_and_order(tmp_path: Path, bits: int, order: str) -> None:
    for is_inline in (False, True):
        assert _go_version_of(tmp_path, _elf(bits, order, _build_information(bits, order, b"go1.17.13", is_inline))) == "1.17.13"


@pytest.mark.parametrize("text", [b"", b"devel +abc", b"go1.x", b"\xff" * 200])
def test_a_version_that_is_none_is_unknown(tmp_path: Path, text: bytes) -> None:
    assert _go_version_of(tmp_path, _elf(64, "<", _build_information(64, "<", text[:120], True))) == ""


@pytest.mark.parametrize("arguments", [[], ["--max-old-space-size=300"]])
def test_node_has_its_version_and_its_limit(arguments: list[str]) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this host")
    script = "console.log('ready'); setTimeout(() => {}, 60000)"
    with running(node, *arguments, "-e", script, NODE_OPTIONS="") as pid:
        known = runtime_of(pid)
    limit = 300 << 20 if arguments else None
    assert known == Runtime("node", known.version, collected=True, heap_limit_bytes=limit)
    printed = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    # Its header may not be installed.
    assert known.version in ("", printed.strip().removeprefix("v"))


def test_java_has_its_version_and_its_limit(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.skip("no Java on this host")
    source = 'public class Waits { public static void main(String[] a) throws Exception { System.out.println("r"); Thread.sleep(60000); } }'
    (tmp_path / "Waits.java").write_text(source, encoding="utf-8")
    with running(java, "-Xmx64m", "-cp", ".", str(tmp_path / "Waits.java"), "-Xmx1m") as pid:
        known = runtime_of(pid)
    assert known == Runtime("jvm", known.version, collected=True, heap_limit_bytes=64 << 20)
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    assert f'"{known.version}"' in printed


@pytest.mark.parametrize(
    ("exe", "maps", "kind", "version"),
    [
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", (), "beam", "13.1.5"),
        ("/usr/local/bin/deno", (), "deno", ""),
        ("/root/.bun/bin/bun", (), "bun", ""),
        ("/usr/sbin/php-fpm8.2", (), "php", "8.2"),
        ("/usr/bin/ruby3.1", (), "ruby", "3.1"),
        ("/srv/app", ("/lib/libc.so.6", "/usr/lib/libruby.so.3.3.1"), "ruby", "3.3.1"),
        ("/srv/app", ("/usr/lib/libruby-3.1.so.3.1",), "ruby", "3.1"),
        ("/usr/bin/uwsgi", ("/usr/lib/libpython3.11.so.1.0",), "python", "3.11"),
        ("/usr/bin/pypy3", ("/usr/lib/libpypy3.9-c.so",), "python", ""),
        ("/usr/bin/dotnet", ("/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.11/libcoreclr.so",), "dotnet", "8.0.11"),
        ("/srv/jre/bin/java", ("/srv/jre/lib/server/libjvm.so (deleted)",), "jvm", ""),
        ("/usr/sbin/apache2", ("/usr/lib/apache2/modules/libphp8.2.so",), "php", "8.2"),
        ("/usr/sbin/nginx", ("/lib/libc.so.6", "/memfd:libjvm.so.x", "[heap]"), "", ""),
    ],
)
def test_other_runtimes_are_known_by_names(tmp_path: Path, exe: str, maps: tuple[str, ...], kind: str, version: str) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    program = tmp_path / "root" / exe.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_bytes(b"no program")
    (folder / "exe").symlink_to(program)
    lines = [f"7f00-7f01 r-xp 00000000 00:00 0 {path}" for path in maps]
    (folder / "maps").write_text("7f00-7f01 rw-p 0 00:00 0\nno map\n" + "\n".join(lines), encoding="utf-8")
    known = runtime_of(7, tmp_path)
    assert (known.kind, known.version) == (kind, version)
    assert known.collected is (kind not in ("", "php") and not (kind == "python" and "pypy" not in exe))


def test_only_the_runtimes_own_options_count() -> None:
    java = ["java", "-cp", "-Xmx9g", "-Xmx1G", "-XX:MaxHeapSize=2g", "-jar", "a.jar", "-Xmx8g"]
    assert java_heap_limit(java, {}) == 2 << 30
    assert java_heap_limit(java, {"JAVA_TOOL_OPTIONS": "-Xmx3g"}) == 2 << 30
    assert java_heap_limit(java, {"_JAVA_OPTIONS": "-Dx -Xmx512k"}) == 512 << 10
    assert java_heap_limit(["java", "Main", "-Xmx1g"], {}) is None
    node = ["node", "-r", "./x", "--max_old_space_size=100", "app.js", "--max-old-space-size=200"]
    assert node_heap_limit(node, {"NODE_OPTIONS": "--max-old-space-size=50"}) == 100 << 20
    assert node_heap_limit(["title"], {"NODE_OPTIONS": "--max-old-space-size=50"}) == 50 << 20
    assert node_heap_limit([], {"NODE_OPTIONS": "--max-old-space-size=0"}) is None


# What is no program, or a hostile one.


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 2**64 - 1), st.booleans())
def test_any_bytes_are_read_without_an_error(junk: bytes, at: int, number: int, is_64: bool) -> None:
    data = bytearray(_elf(64 if is_64 else 32, "<", _build_information(64 if is_64 else 32, "<", b"go1.20", False)))
    data[at : at + 8] = struct.pack("<Q", number)
    for text in (bytes(data), bytes(data) + junk, bytes(data)[:at], b"\x7fELF\x02\x01" + junk, junk):
        descriptor = os.memfd_create("hostile")
        try:
            os.write(descriptor, text)
            go_version(Elf(descriptor))
        except NotElfError:
            pass
        finally:
            os.close(descriptor)


def test_a_huge_sparse_file_is_read_in_part(tmp_path: Path) -> None:
    data = _elf(64, "<", _build_information(64, "<", b"go1.20", True))
    hostile = tmp_path / "sparse"
    hostile.write_bytes(data[:24] + bytes(8) + data[32:56] + bytes(8))
    os.truncate(hostile, 1 << 40)
    (tmp_path / "9").mkdir()
    (tmp_path / "9/exe").symlink_to(hostile)
    begun_s = time.monotonic()
    assert runtime_of(9, tmp_path) == Runtime()
    assert time.monotonic() - begun_s < 1


def test_what_is_no_regular_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "9").mkdir()
    for name in ("exe", "maps", "environ", "cmdline"):
        (tmp_path / "9" / name).symlink_to(tmp_path / "fifo")
    assert runtime_of(9, tmp_path) == Runtime()


@pytest.mark.parametrize("facts", [None, 1, [], {"kind": 3}, {"version": None}, {"kind": "go", "gogc": "x"}])
def test_facts_that_are_no_runtime_are_unknown(facts: object) -> None:
    assert Runtime.of(facts) == Runtime()


def test_a_runtime_of_a_later_version_keeps_its_name() -> None:
    later = Runtime.of({"kind": "zig\x1b", "version": "9", "further": True})
    assert (later.title, later.collected) == ("zig? 9", False)
    go = Runtime("go", "1.26", collected=True, gogc=-1)
    assert Runtime.of(go.document()) == go
    assert go.words.endswith("GOGC=off")


def _go_version_of(folder: Path, data: bytes) -> str | None:
    (folder / "program").write_bytes(data)
    descriptor = os.open(folder / "program", os.O_RDONLY)
    try:
        return go_version(Elf(descriptor))
    finally:
        os.close(descriptor)


_LOADED_AT = 0x10000
_INFORMATION_AT = 0x100


def _build_information(bits: int, order: str, version: bytes, is_inline: bool) -> bytes:
    """Go's build information, as it is at :data:`_INFORMATION_AT` in the file of :func:`_elf`."""
    size = bits // 8
    flags = (2 if is_inline else 0) | (1 if order == ">" else 0)
    header = b"\xff Go buildinf:" + bytes([size, flags])
    if is_inline:
        return header.ljust(32, b"\0") + bytes([len(version)]) + version
    letter = "I" if bits == 32 else "Q"
    at = _LOADED_AT + _INFORMATION_AT
    pointers = struct.pack(f"{order}2{letter}", at + 32, 0).ljust(16, b"\0")
    string = struct.pack(f"{order}2{letter}", at + 32 + 2 * size, len(version))
    return header + pointers + string + version


def _elf(bits: int, order: str, information: bytes) -> bytes:
    """An ELF file of one segment of data, without sections."""
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    length = _INFORMATION_AT + len(information)
    if bits == 64:
        head = struct.pack(f"{order}HHIQQQI6H", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
        segment = struct.pack(f"{order}IIQQQQQQ", 1, 6, 0, _LOADED_AT, 0, length, length, 0)
    else:
        head = struct.pack(f"{order}HHIIIII6H", 2, 3, 1, 0, 52, 0, 0, 52, 32, 1, 40, 0, 0)
        segment = struct.pack(f"{order}8I", 1, 0, _LOADED_AT, 0, length, length, 6, 0)
    return (ident + head + segment).ljust(_INFORMATION_AT, b"\0") + information
