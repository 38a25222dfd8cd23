"""A program beside a server, which has nothing to do with it: python bystander.py KIND BYTES_PER_SECOND

It takes memory all the time: ``memory`` of its own, or of the kernel in filled ``pipes``. It prints a line when it has begun, and
ends when its standard input does.
"""

from __future__ import annotations

import os
import select
import sys
import time

KIND, BYTES_PER_SECOND = sys.argv[1], int(sys.argv[2])
#: Small pipes: two open files for each of them are much beside the sockets' own.
PIPE_BYTES = 16_384
#: It takes so much at a time.
SLICES_PER_SECOND = 10
kept: list[object] = []
begun_s = time.monotonic()
taken_bytes = 0
print("begun", flush=True)
while not select.select([sys.stdin], [], [], 1 / SLICES_PER_SECOND)[0]:
    due_bytes = BYTES_PER_SECOND * (time.monotonic() - begun_s)
    while taken_bytes < due_bytes:
        if KIND == "pipes":
            reader, writer = os.pipe()
            os.write(writer, bytes(PIPE_BYTES))
            kept.append((reader, writer))
            taken_bytes += PIPE_BYTES
        else:
            kept.append(os.urandom(BYTES_PER_SECOND // SLICES_PER_SECOND))
            taken_bytes += BYTES_PER_SECOND // SLICES_PER_SECOND
