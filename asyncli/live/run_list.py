"""The run files of a folder as its start page lists them. A file is read again only when it was
written since; of its records only what a line of the list says.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from asyncli.live.following import UNLOCKED_S
from asyncli.live.verdicts import Judged
from asyncli.model.errors import StoreError
from asyncli.model.text import printable
from asyncli.store.follow import last_written_s, size_bytes
from asyncli.store.lock import is_locked
from asyncli.store.reader import read_frame, read_with
from asyncli.store.run_folder import run_files

#: So many of the files that were written last are listed; `asyncli runs` lists all.
MOST_LISTED = 1000
# A turn reads files for so long; the others are read in the next turns.
_BUDGET_S = 0.5

#: "waiting": not read yet; "empty": its soak has not begun to write; "cut": it ended without its
#: last record, as a killed run does; "broken": it is no run, or unreadable.
RunState = Literal["waiting", "empty", "running", "ended", "cut", "broken"]


class FileStamp(NamedTuple):
    """What changes with a file: size (bytes), when it was written (s since 1970), and when its
    rights were changed, with its number.
    """

    size: int
    written_s: float
    changed: tuple[int, int]


class ListedRun(msgspec.Struct):
    """A file of the folder. ``name``: to be shown; ``href``: relative to the folder's page."""

    name: str
    href: str
    stamp: FileStamp
    state: RunState = "waiting"
    #: Seconds since 1970; of what is no run, when the file was written.
    began_s: float = 0.0
    server: str = ""
    connections: int = 0
    #: "": not known, or not yet.
    verdict: str = ""
    severity: str | None = None
    #: Why it is broken.
    why: str = ""
    is_judged: bool = False

    def document(self) -> dict[str, Any]:
        """It as plain data."""
        return {
            "name": self.name,
            "href": self.href,
            "state": self.state,
            "began_s": self.began_s,
            "server": self.server,
            "connections": self.connections,
            "verdict": self.verdict,
            "severity": self.severity,
            "why": self.why,
            # A run that is written grows all the time.
            "bytes": None if self.state == "running" else self.stamp.size,
        }


class RunList:
    """Of ``folder``. Not safe for two threads at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Changes with what is listed.
        self.version = 0
        #: Why the folder cannot be listed; "": it can.
        self.problem = ""
        #: How many files were found and are not listed.
        self.left_out = 0
        self._runs: dict[str, ListedRun] = {}
        self._shown: list[dict[str, Any]] = []

    def refresh(self) -> None:
        """Look at the folder, and read what is new for half a second. Blocks."""
        stamps = self._stamps()
        kept: dict[str, ListedRun] = {}
        for name, stamp in stamps.items():
            run = self._runs.get(name)
            if run is None:
                shown = printable(name)
                href = f"run/{urllib.parse.quote(os.fsencode(name), safe='')}/"
                run = ListedRun(shown, href, stamp, began_s=stamp.written_s)
            kept[name] = run
        self._runs = kept
        latest_s = time.monotonic() + _BUDGET_S
        for name, stamp in stamps.items():
            if time.monotonic() > latest_s:
                break
            self._read(name, self._runs[name], stamp)
        self._publish()

    def _stamps(self) -> dict[str, FileStamp]:
        """The files that were written last, newest first."""
        stamps: list[tuple[str, FileStamp]] = []
        self.problem = ""
        for path, error in run_files(self.folder):
            if error is not None and path == self.folder:
                self.problem = f"{printable(str(path))}: cannot be listed ({error.strerror})"
                continue
            stamps.append((path.name, _stamp_of(path)))
        stamps.sort(key=lambda file: (-file[1].written_s, file[0]))
        self.left_out = max(0, len(stamps) - MOST_LISTED)
        return dict(stamps[:MOST_LISTED])

    def _read(self, name: str, run: ListedRun, stamp: FileStamp) -> None:
        path = self.folder / name
        is_settled = run.state in ("ended", "broken")
        if is_settled and run.stamp == stamp:
            return
        # Before it is read: a run that ends meanwhile is complete.
        is_written = is_locked(path) or time.time() - stamp.written_s < UNLOCKED_S
        if run.state in ("running", "cut") and run.stamp == stamp:
            run.state = "running" if is_written else "cut"
            return
        run.stamp = stamp
        run.is_judged = False
        run.verdict = ""
        run.severity = None
        run.why = ""
        if not stamp.size and is_written:
            run.state = "empty"
            return
        try:
            frame = read_with(path, read_frame)
        except StoreError as error:
            run.state = "broken"
            run.began_s = stamp.written_s
            # The name stands beside it.
            run.why = printable(error.what.removeprefix(f"{path}: "))
            return
        run.began_s = frame.started_wall_s
        run.server = frame.place.server_label
        run.connections = frame.plan.connections
        if frame.complete:
            run.state = "ended"
        else:
            run.state = "running" if is_written else "cut"

    def _publish(self) -> None:
        newest_first = sorted(self._runs.values(), key=lambda run: (-run.began_s, run.name))
        shown = [run.document() for run in newest_first]
        if shown != self._shown or self.version == 0:
            self._shown = shown
            self.version += 1

    def document(self) -> dict[str, Any]:
        """The list as plain data, newest first."""
        return {
            "folder": printable(str(self.folder.absolute())),
            "problem": self.problem,
            "left_out": self.left_out,
            "runs": self._shown,
        }

    def counts(self) -> dict[str, int]:
        """How many files there are of each state that a file stays in."""
        counts = dict.fromkeys(("running", "ended", "cut", "broken"), 0)
        for run in self._runs.values():
            if run.state in counts:
                counts[run.state] += 1
        return counts

    def next_unjudged(self) -> Path | None:
        """The newest run that has ended and has no verdict yet."""
        newest: tuple[float, str] | None = None
        for name, run in self._runs.items():
            if run.state != "ended" or run.is_judged:
                continue
            if newest is None or run.began_s > newest[0]:
                newest = (run.began_s, name)
        return None if newest is None else self.folder / newest[1]

    def judged(self, path: Path, judged: Judged) -> None:
        """Take the verdict of a run."""
        run = self._runs.get(path.name)
        if run is None:
            return
        run.is_judged = True
        run.verdict = judged.verdict
        run.severity = judged.severity
        self._publish()


def _stamp_of(path: Path) -> FileStamp:
    try:
        status = path.stat()
    except OSError:
        return FileStamp(0, 0.0, (0, 0))
    # Of an empty file no write is known.
    written_s = last_written_s(path) or status.st_mtime
    return FileStamp(size_bytes(path), written_s, (status.st_ctime_ns, status.st_ino))
