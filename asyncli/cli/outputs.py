"""Where a command writes: ``--json FILE``, ``--html FILE``, ``--junit FILE``, ``--plots DIR``, ``--csv DIR``; and printing.

A file that the user named is written anew. Of a folder only the folder was named: what stands in it under a name of ours is
replaced where it is this run's own, and nothing else ever is. What is printed may have no reader (`| head`): that is no error,
and changes no exit status. Any other reason why it cannot be written (a full disk) is one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from asyncli.cli.stdio import outlet_of
from asyncli.errors import PlanError

if TYPE_CHECKING:
    from asyncli.app.results import Results

#: Said in every picture, and found again by :func:`write_folder`.
MARK = "asyncli run "
_HEAD_BYTES = 4096
OTHER_FILE = "name another file"
#: What writing to a terminal or pipe that has gone away raises; rich and click turn EPIPE into SystemExit.
UNSEEN = (OSError, SystemExit)


class Outputs(NamedTuple):
    """Where a soak writes, and what it prints. A run file that is not named has a default name."""

    out: str | None = None
    json_file: str | None = None
    html_file: str | None = None
    junit_file: str | None = None
    log_json: bool = False
    on_finish: str | None = None
    verbose: bool = False
    quiet: bool = False

    @property
    def files(self) -> dict[str, str | None]:
        """The files of the report, by their flags."""
        return {"--json": self.json_file, "--junit": self.junit_file, "--html": self.html_file}

    @property
    def piped(self) -> bool:
        """One of them is standard output."""
        return "-" in self.files.values()


def written_reports(files: Mapping[str, str | None], results: Results, *, kept: bool = False) -> list[Callable[[], None]]:
    """What writes each of the report's files (see :attr:`Outputs.files`); ``kept``: the run stays in its file all the same."""

    def json() -> str:
        from asyncli.report.jsonout import to_json

        return to_json(results.summary) + "\n"

    def junit() -> str:
        from asyncli.report.junit import to_junit

        return to_junit(results.summary)

    def elsewhere(flag: str) -> str:
        return f"'asyncli report {results.path} {flag} FILE' writes it elsewhere" if kept else OTHER_FILE

    return file_writers(files, {"--json": json, "--junit": junit, "--html": results.html}, elsewhere)


def file_writers(
    files: Mapping[str, str | None], texts: Mapping[str, Callable[[], str]], mend: Callable[[str], str] = lambda _: OTHER_FILE
) -> list[Callable[[], None]]:
    """What writes the file of each flag that was given; ``texts`` make what is in it, and ``mend`` as of :func:`write_file`."""

    def write(flag: str, file: str) -> None:
        write_file(flag, file, texts[flag](), mend(flag))

    return [partial(write, flag, file) for flag, file in files.items() if file is not None]


def require_files(files: Mapping[str, str | None], run_file: Path | None = None) -> None:
    """Raise :class:`PlanError` for a file (flag -> name, "-" for standard output) that could not be written, while there
    is still time to say so."""
    named = {flag: file for flag, file in files.items() if file is not None}
    for flag, file in named.items():
        if file == "-":
            continue
        path = Path(file)
        if os.path.isdir(path) or not os.access(path.absolute().parent, os.W_OK):
            what = "is a folder" if os.path.isdir(path) else "lies in a folder that does not exist or cannot be written"
            raise PlanError(f"{flag}: {file} {what}; name another file")
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise PlanError(f"{flag}: {file} cannot be written; see its permissions, or name another file")
        if run_file is not None and same_file(path, run_file):
            raise PlanError(f"{flag}: {file} is the run file itself; name another file")
    seen: dict[str, str] = {}
    for flag, file in named.items():
        place = file if file == "-" else os.path.realpath(file)
        if place in seen:
            what = "go to standard output" if file == "-" else f"name {file}"
            raise PlanError(f"{seen[place]} and {flag}: both {what}; name two files")
        seen[place] = flag


def require_folder(flag: str, folder: str) -> None:
    """Raise :class:`PlanError` for a folder that is none, cannot be made or cannot be written to."""
    path = Path(folder)
    if os.path.isdir(path):
        if not os.access(path, os.W_OK | os.X_OK):
            raise PlanError(f"{flag}: {folder} cannot be written to; see its permissions, or name another folder")
    elif os.path.lexists(path):
        raise PlanError(f"{flag}: {folder} is not a folder; name another one")
    elif not os.access(path.absolute().parent, os.W_OK):
        raise PlanError(f"{flag}: {folder} lies in a folder that does not exist or cannot be written; name another one")


@contextlib.contextmanager
def made_folder(flag: str, folder: Path, *, new: bool = False) -> Iterator[None]:
    """The folder, made (``new``: it must not exist) while there is still time to name another; removed if nothing is in it."""
    ours = not folder.exists()
    try:
        folder.mkdir(exist_ok=not new)
    except FileExistsError:
        raise PlanError(f"{flag}: {folder} exists already; name a new folder, so that nothing is mixed up") from None
    except OSError as error:
        raise PlanError(f"{flag}: {folder} cannot be made ({error.strerror}); name another folder") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if ours:
                folder.rmdir()


def write_file(flag: str, file: str, text: str, mend: str = OTHER_FILE) -> None:
    """``text`` into the file, or to standard output. Raises :class:`PlanError` with ``mend`` where it cannot be written."""
    if file == "-":
        if sys.stdout is None:
            raise PlanError(f"{flag}: standard output is closed; {mend}")
        with printing(flag):
            # In UTF-8 as every file is, whatever the terminal's encoding: a page says so of itself.
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode())
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{flag}: {file} cannot be written ({error.strerror}); {mend}") from None


def write_folder(flag: str, folder: str, contents: Iterable[tuple[str, bytes]], names: Iterable[str], run_id: str) -> list[Path]:
    """Files (name, content) into the folder, which is made where it is missing; the paths.

    Before the first is written or even made, :class:`PlanError` is raised where one of ``names`` stands there already and
    is not of the run ``run_id``.
    """
    root = Path(folder)
    try:
        for name in names:
            if os.path.lexists(root / name) and not _is_of(root / name, run_id):
                what = "exists already and is not of this run"
                raise PlanError(f"{flag}: {root / name} {what}; name another folder, or move it away")
        root.mkdir(exist_ok=True)
        written = []
        for name, content in contents:
            (root / name).write_bytes(content)
            written.append(root / name)
    except OSError as error:
        raise PlanError(f"{flag}: {error.filename or folder} cannot be written ({error.strerror}); name another folder") from None
    return written


@contextlib.contextmanager
def printing(what: str = "the report") -> Iterator[None]:
    """Print within it. A reader that has left is no error; raises :class:`PlanError` for whatever else stands in the way.

    Where a thread writes (asyncli/cli/stdio.py), an error may come at the end of the process only, which names ``what``.
    """
    through = [outlet for stream in _streams() if (outlet := outlet_of(stream)) is not None]
    try:
        for outlet in through:
            outlet.what = what
        yield
        for stream in _streams():
            stream.flush()
    except UNSEEN as error:
        hush()
        if reader_left(error):
            return
        if isinstance(error, SystemExit):
            raise
        raise PlanError(unprinted(error.filename or what, error)) from None
    finally:
        for outlet in through:
            outlet.what = None


def unprinted(what: str, error: OSError) -> str:
    """One line that says so."""
    return f"{what} cannot be printed ({error.strerror}); make room there, or print it elsewhere"


def deliver(*parts: Callable[[], None]) -> None:
    """Do each of ``parts``, which print or write, whatever became of the one before; then raise their PlanErrors as one."""
    errors = []
    for part in parts:
        try:
            part()
        except PlanError as error:
            errors.append(str(error))
    if errors:
        raise PlanError("\n".join(errors))


def reader_left(error: BaseException) -> bool:
    """Whether ``error`` says that nobody reads our output any more."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, OSError) and cause.errno == errno.EPIPE


def hush() -> bool:
    """Send what standard output and standard error cannot write to nowhere, from now on; whether there was any."""
    stuck = False
    for stream in _streams():
        try:
            stream.flush()
        except OSError:
            stuck = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            # What waits in it goes there now, and no error comes of it when the interpreter ends.
            stream.flush()
    return stuck


def _streams() -> list[TextIO]:
    """Standard output and standard error; None stands for one that was closed beforehand."""
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    return [stream for stream in streams if stream is not None]


def same_file(path: Path, other: Path) -> bool:
    """Whether both name one file. What cannot be looked at is none that is known."""
    if path.absolute() == other.absolute():
        return True
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _is_of(path: Path, run_id: str) -> bool:
    """Whether a file is an export of this run: a table of its rows (or of none), or a picture that says so."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if path.suffix == ".csv":
        header, _, rest = head.partition(b"\n")
        return header.startswith(b"run_id,") and (not rest or rest.startswith(f"{run_id},".encode()))
    return f"{MARK}{run_id}".encode() in head
