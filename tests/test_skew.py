"""Programs whose clocks are changed run as others do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import deadline_s
from skew import Skew

_THREADS = """
import json, threading, time
begun, turns = time.monotonic(), [0, 0]
time.sleep(0.1)
slept = time.monotonic() - begun
def spin(number):
    while time.monotonic() < begun + 1:
        turns[number] += 1
one = threading.Thread(target=spin, args=(0,))
one.start()
spin(1)
one.join()
print(json.dumps([begun, slept, *turns]))
"""


@pytest.mark.compiler
def test_threads_take_turns_and_sleeps_end_where_the_clock_is_ahead(tmp_path: Path) -> None:
    skew = Skew(tmp_path)
    skew.ahead(1e6)
    environment = {**os.environ, **skew.environment}
    done = subprocess.run([sys.executable, "-c", _THREADS], env=environment, capture_output=True, check=True, timeout=deadline_s())
    begun, slept, first, second = json.loads(done.stdout)
    assert begun > 1e6
    assert 0.1 <= slept < 1e3
    assert min(first, second) > 0
