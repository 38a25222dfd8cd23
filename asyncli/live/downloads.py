"""The report of a run so far, to keep: made by a process of its own, one at a time."""

from __future__ import annotations

import asyncio
import io
import tempfile
import zipfile
from pathlib import Path

from aiohttp import web

from asyncli.live.answers import HEADERS
from asyncli.model.own_process import command_of, environment_of
from asyncli.model.text import printable
from asyncli.web.guard import RefusedError

# A report of a night takes some seconds, and minutes where the host is busy.
_REPORT_S = 600.0
# On top of the page's own: the report must give way to the soak, and still come on a busy host (a
# process of niceness 19 got 1 % of a core beside eight busy ones, and a report took a minute).
_REPORT_NICENESS = "5"
#: What may be downloaded: name -> (option of ``asyncli report``, content type).
_REPORTS = {
    "report.html": ("--html", "text/html"),
    "report.json": ("--json", "application/json"),
}
#: All tables of ``asyncli report --csv``, in one file.
_TABLES = "tables.zip"


class Downloads:
    """Of the run in ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._making = asyncio.Lock()

    async def answer(self, name: str) -> web.Response:
        """The download called ``name``. Raises :class:`~asyncli.web.guard.RefusedError` where it
        cannot be made.
        """
        stem = printable(self._path.stem).replace('"', "'")
        suffix = name.partition(".")[2]
        if name in _REPORTS:
            option, content_type = _REPORTS[name]
            async with self._making:
                body = await self._reported(option, "-")
        elif name == _TABLES:
            content_type = "application/zip"
            async with self._making:
                body = await self._tables(stem)
        else:
            raise web.HTTPNotFound
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{stem}.{suffix}"'}
        return web.Response(body=body, content_type=content_type, headers=headers)

    async def _tables(self, stem: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="asyncli-") as folder:
            await self._reported("--csv", folder)
            return await asyncio.to_thread(_zipped, Path(folder), stem.replace("/", "_"))

    async def _reported(self, option: str, place: str) -> bytes:
        """What ``asyncli report`` writes to standard output."""
        command = command_of("asyncli", "report", str(self._path), option, place)
        process = await asyncio.create_subprocess_exec(
            "nice",
            "-n",
            _REPORT_NICENESS,
            *command,
            env=environment_of(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_REPORT_S):
                body, complaint = await process.communicate()
        except TimeoutError:
            raise RefusedError(503, "the report took too long") from None
        finally:
            # Its reader may have gone.
            if process.returncode is None:
                process.kill()
        if not body:
            raise RefusedError(503, complaint.decode(errors="replace").strip()[-300:])
        return body


def _zipped(folder: Path, stem: str) -> bytes:
    """The files of ``folder`` as one file, in a folder called ``stem``."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{stem}/{path.name}")
    return packed.getvalue()
