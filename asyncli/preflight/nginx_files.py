"""Reads nginx's configuration files with their includes; crossplane parses them.

Not by ``nginx -T``, which opens logs and makes directories. Both show the current files, not those
that nginx read at its start.
"""

from __future__ import annotations

import errno
import glob
import os
from itertools import islice
from typing import Any

from asyncli.model.trust import User, read_regular

# Bounds, also on circular includes: crossplane takes 0.4 s for 1 MB. A server's files seldom exceed
# some hundred kB; a thousand sites with five includes each are 6,000 files.
_MOST_BYTES = 4 << 20
_MOST_FILES = 10_000
_DEEPEST = 16
# sites/*/conf.d/*.conf has two; five would walk a whole disk.
_MOST_WILDCARDS = 2

# One directive of crossplane's: "directive", "args", and for a block "block".
Directive = dict[str, Any]


class UnreadableError(Exception):
    """Names the file and the reason; quotes no line of the file."""


class NginxFiles:
    """A configuration with its includes, as far as ``user`` (None: ours) may read it.

    crossplane gets one file at a time: by itself it would open any included file.
    """

    def __init__(self, main: str, user: User | None) -> None:
        self._main = main
        self._user = user
        #: What may still be read.
        self._bytes = _MOST_BYTES
        self._files = _MOST_FILES
        #: When the newest of the files was changed (s since 1970).
        self.changed_s = 0.0

    def read(self) -> list[Directive]:
        """All directives. Raises :class:`UnreadableError`."""
        try:
            return self._read_file(self._main, self._main, 0)
        except RecursionError:
            raise UnreadableError(f"{self._main}: nested too deeply") from None

    def _read_file(self, path: str, shown: str, depth: int) -> list[Directive]:
        """The directives of a file with its includes.

        ``shown``: the include pattern. Messages contain only this: the user may not be allowed to
        see the matching names.
        """
        self._files -= 1
        if self._files < 0 or depth > _DEEPEST:
            raise UnreadableError(
                f"{shown}: more than {_MOST_FILES:,} files, or one that includes itself"
            )
        try:
            text = read_regular(path, self._bytes, self._user)
            status = os.stat(path)
            # A file that was moved here, or copied with its times, is as old as it was elsewhere.
            self.changed_s = max(self.changed_s, status.st_mtime, status.st_ctime)
        except (OSError, ValueError) as error:
            raise UnreadableError(f"{shown} {self._why(error)}") from None
        self._bytes -= len(text)
        return self._with_includes(parse(text, shown), depth)

    def _why(self, error: OSError | ValueError) -> str:
        match getattr(error, "errno", None):
            case errno.ENOENT:
                return "does not exist"
            case errno.EACCES:
                if self._user is None or self._user.uid in (0, os.geteuid()):
                    return "may not be read by asyncli's user"
                return f"may not be read by the server's user {self._user.uid}"
            case errno.EFBIG:
                return f"makes the configuration longer than {_MOST_BYTES:,} bytes"
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"

    def _with_includes(self, block: list[Directive], depth: int) -> list[Directive]:
        flat = []
        for directive in block:
            if "block" in directive:
                directive["block"] = self._with_includes(directive["block"], depth)
            if directive["directive"] != "include" or len(directive["args"]) != 1:
                flat.append(directive)
                continue
            # Relative to the main file, in any file (ngx_conf_include).
            pattern = os.path.join(os.path.dirname(self._main), directive["args"][0])
            for path in self._matching_paths(pattern):
                flat += self._read_file(path, pattern, depth + 1)
        return flat

    def _matching_paths(self, pattern: str) -> list[str]:
        if not glob.has_magic(pattern):
            return [pattern]
        with_wildcards = [part for part in pattern.split("/") if glob.has_magic(part)]
        if len(with_wildcards) > _MOST_WILDCARDS:
            raise UnreadableError(
                f"{pattern}: more than {_MOST_WILDCARDS} folders or names with wildcards"
            )
        return sorted(islice(glob.iglob(pattern), self._files + 1))


def parse(text: bytes, shown: str) -> list[Directive]:
    """The directives of one file without its includes.

    Raises :class:`UnreadableError`, which names the file ``shown``.
    """
    # Imported here: 40 ms, and most runs aim at something else.
    import crossplane  # type: ignore[import-untyped]

    # It needs a file's name.
    with os.fdopen(os.memfd_create("asyncli-nginx.conf", os.MFD_CLOEXEC), "wb") as file:
        file.write(text)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}"
        try:
            answer = crossplane.parse(name, single=True, check_ctx=False, check_args=False)
        except Exception as error:  # any failure: the run can continue without the configuration
            raise UnreadableError(f"{shown}: {type(error).__name__}") from None
    if answer["status"] != "ok":
        # Its text for a syntax error quotes nothing of the file.
        why = str(answer["errors"][0]["error"])
        raise UnreadableError(f"{shown}: {why.replace(name, 'line').replace('line:', 'line ')}")
    parsed: list[Directive] = answer["config"][0]["parsed"]
    return parsed
