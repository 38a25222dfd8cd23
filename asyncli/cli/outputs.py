"""Where a command writes: ``--json FILE``, ``--html FILE``, ``--junit FILE``, ``--plots DIR``,
``--csv DIR``; and printing.

A file that the user named is overwritten. In a folder that the user named, only exports of the same
run are replaced. A broken pipe (`| head`) is no error and changes no exit status; any other failure
to write (a full disk) is an error.
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
from asyncli.model.errors import HostError, PlanError
from asyncli.model.installed import DRAWING, how_to_install, missing

if TYPE_CHECKING:
    from asyncli.app.results import Results

#: Part of every figure's description, by which :func:`write_folder` recognises it.
MARK = "asyncli run "
_HEAD_BYTES = 4096
OTHER_FILE = "name another file"
#: What writing to a closed terminal or pipe raises; rich and click turn EPIPE into SystemExit.
OUTPUT_GONE = (OSError, SystemExit)


class Outputs(NamedTuple):
    """Where a soak writes, and what it prints."""

    out: str | None = None
    json_file: str | None = None
    html_file: str | None = None
    junit_file: str | None = None
    log_json: bool = False
    on_finish: str | None = None
    verbose: bool = False
    quiet: bool = False
    summary: str = "text"

    @property
    def files(self) -> dict[str, str | None]:
        """The files of the report, by flag."""
        return {"--json": self.json_file, "--junit": self.junit_file, "--html": self.html_file}

    @property
    def piped(self) -> bool:
        """Whether one of the files is standard output."""
        return "-" in self.files.values()


def written_reports(
    files: Mapping[str, str | None], results: Results, *, kept: bool = False
) -> list[Callable[[], None]]:
    """Writers of the report's files (see :attr:`Outputs.files`).

    ``kept``: the run is in its file, whatever fails here.
    """

    def json() -> str:
        from asyncli.report.jsonout import to_json

        return to_json(results.summary) + "\n"

    def junit() -> str:
        from asyncli.report.junit import to_junit

        return to_junit(results.summary)

    def elsewhere(flag: str) -> str:
        if kept:
            return f"'asyncli report {results.path} {flag} FILE' writes it elsewhere"
        return OTHER_FILE

    texts = {"--json": json, "--junit": junit, "--html": results.html}
    return file_writers(files, texts, elsewhere)


def file_writers(
    files: Mapping[str, str | None],
    texts: Mapping[str, Callable[[], str]],
    mend: Callable[[str], str] = lambda _: OTHER_FILE,
) -> list[Callable[[], None]]:
    """A writer for each file that is not None.

    ``texts`` make the contents by flag; ``mend``: see :func:`write_file`.
    """

    def write(flag: str, file: str) -> None:
        write_file(flag, file, texts[flag](), mend(flag))

    return [partial(write, flag, file) for flag, file in files.items() if file is not None]


def require_files(files: Mapping[str, str | None], run_file: Path | None = None) -> None:
    """Raise :class:`PlanError` for a file (flag -> name, "-" for standard output) that cannot be
    written, before the run.
    """
    named = {flag: file for flag, file in files.items() if file is not None}
    if "--html" in named:
        _require_drawing("--html")
    for flag, file in named.items():
        if file != "-":
            _require_file(flag, file, run_file)
    flags: dict[str, str] = {}
    for flag, file in named.items():
        place = file if file == "-" else os.path.realpath(file)
        if place in flags:
            both = "go to standard output" if file == "-" else f"name {file}"
            raise PlanError(f"{flags[place]} and {flag}: both {both}; name two files")
        flags[place] = flag


def _require_drawing(flag: str) -> None:
    """Raise :class:`HostError` unless figures can be drawn here."""
    lacks = missing(DRAWING)
    if lacks:
        raise HostError(
            f"{flag}: {', '.join(lacks)} not installed, which figures need; {how_to_install()}"
        )


def _require_file(flag: str, file: str, run_file: Path | None) -> None:
    from asyncli.store.reader import is_sqlite

    path = Path(file)
    if os.path.isdir(path):
        raise PlanError(f"{flag}: {file} is a folder; name another file")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PlanError(
            f"{flag}: {file} lies in a folder that does not exist or cannot be written; "
            "name another file"
        )
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise PlanError(
            f"{flag}: {file} cannot be written; see its permissions, or name another file"
        )
    if run_file is not None and same_file(path, run_file):
        raise PlanError(f"{flag}: {file} is the run file itself; name another file")
    if os.path.isfile(path) and is_sqlite(path):
        raise PlanError(f"{flag}: {file} is a SQLite file, such as a run; name another file")


def require_folder(flag: str, folder: str) -> None:
    """Raise :class:`PlanError` for a folder that is a file, cannot be created or cannot be written
    to.
    """
    if folder == "-":
        raise PlanError(
            f"{flag}: several files are written, and not to standard output; name a folder, "
            "or ./- for one of that name"
        )
    if flag == "--plots":
        _require_drawing(flag)
    path = Path(folder)
    if os.path.isdir(path):
        if not os.access(path, os.W_OK | os.X_OK):
            raise PlanError(
                f"{flag}: {folder} cannot be written to; "
                "see its permissions, or name another folder"
            )
    elif os.path.lexists(path):
        raise PlanError(f"{flag}: {folder} is not a folder; name another one")
    elif not os.access(path.absolute().parent, os.W_OK):
        raise PlanError(
            f"{flag}: {folder} lies in a folder that does not exist or cannot be written; "
            "name another one"
        )


@contextlib.contextmanager
def made_folder(flag: str, folder: Path, *, new: bool = False) -> Iterator[None]:
    """Create the folder before the run (``new``: it must not exist), and remove it if it stays
    empty.
    """
    is_made_here = not folder.exists()
    try:
        folder.mkdir(exist_ok=not new)
    except FileExistsError:
        raise PlanError(f"{flag}: {folder} already exists; name a new folder") from None
    except OSError as error:
        raise PlanError(
            f"{flag}: {folder} cannot be created ({error.strerror}); name another folder"
        ) from None
    try:
        yield
    finally:
        if is_made_here:
            with contextlib.suppress(OSError):
                folder.rmdir()


def write_file(flag: str, file: str, text: str, mend: str = OTHER_FILE) -> None:
    """Write ``text`` to the file, or to standard output ("-").

    Raises :class:`PlanError` with ``mend`` on failure.
    """
    if file == "-":
        if sys.stdout is None:
            raise PlanError(f"{flag}: standard output is closed; {mend}")
        with printing(flag):
            # UTF-8 as in a file, whatever the terminal's encoding: an HTML page declares it.
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode())
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{flag}: {file} cannot be written ({error.strerror}); {mend}") from None


def write_folder(
    flag: str,
    folder: str,
    contents: Iterable[tuple[str, bytes]],
    names: Iterable[str],
    run_id: str,
) -> list[Path]:
    """Write files (name, content) into the folder, created if missing; return the paths.

    Raises :class:`PlanError` before writing anything if one of ``names`` exists there and is not an
    export of the run ``run_id``.
    """
    root = Path(folder)
    try:
        for name in names:
            if os.path.lexists(root / name) and not _is_of(root / name, run_id):
                raise PlanError(
                    f"{flag}: {root / name} exists and is not of this run; "
                    "name another folder, or move it away"
                )
        root.mkdir(exist_ok=True)
        written = []
        for name, content in contents:
            (root / name).write_bytes(content)
            written.append(root / name)
    except OSError as error:
        raise PlanError(
            f"{flag}: {error.filename or folder} cannot be written ({error.strerror}); "
            "name another folder"
        ) from None
    return written


@contextlib.contextmanager
def printing(what: str = "the report") -> Iterator[None]:
    """Print within this context. A broken pipe is no error; raises :class:`PlanError` for any other
    failure.

    If a thread writes (asyncli/cli/stdio.py), an error may come only at the end of the process; it
    names ``what``.
    """
    outlets = []
    for stream in _streams():
        outlet = outlet_of(stream)
        if outlet is not None:
            outlets.append(outlet)
    try:
        for outlet in outlets:
            outlet.what = what
        yield
        for stream in _streams():
            stream.flush()
    except OUTPUT_GONE as error:
        discard_broken_output()
        if is_broken_pipe(error):
            return
        if isinstance(error, SystemExit):
            raise
        raise PlanError(unprinted(error.filename or what, error)) from None
    finally:
        for outlet in outlets:
            outlet.what = None


def unprinted(what: str, error: OSError) -> str:
    """The error message for output that could not be written."""
    return f"{what} cannot be printed ({error.strerror}); free space there, or print it elsewhere"


def deliver(*parts: Callable[[], None]) -> None:
    """Call each of ``parts``, which print or write, even if an earlier one fails; then raise their
    PlanErrors as one.
    """
    errors = []
    for part in parts:
        try:
            part()
        except PlanError as error:
            errors.append(str(error))
    if errors:
        raise PlanError("\n".join(errors))


def is_broken_pipe(error: BaseException) -> bool:
    """Whether ``error`` means that the reader of our output has closed it."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, OSError) and cause.errno == errno.EPIPE


def discard_broken_output() -> bool:
    """Redirect standard output and standard error to /dev/null if they cannot be written; return
    whether one could not.
    """
    stuck = False
    for stream in _streams():
        try:
            stream.flush()
        except OSError:
            stuck = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            # Flush the buffer to /dev/null, so that the interpreter's exit raises no error.
            stream.flush()
    return stuck


def _streams() -> list[TextIO]:
    """Standard output and standard error, except one that was closed before the start (None)."""
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    return [stream for stream in streams if stream is not None]


def same_file(path: Path, other: Path) -> bool:
    """Whether both name the same file; False if one cannot be read."""
    if path.absolute() == other.absolute():
        return True
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _is_of(path: Path, run_id: str) -> bool:
    """Whether a file is an export of this run: a table with its rows (or none), or a figure with
    its id.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if path.suffix == ".csv":
        header, _, rest = head.partition(b"\n")
        has_rows_of_run = not rest or rest.startswith(f"{run_id},".encode())
        return header.startswith(b"run_id,") and has_rows_of_run
    return f"{MARK}{run_id}".encode() in head
