"""The synthetic runs of tests/analysis and tests/report serve the tests of the commands too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / part) for part in ("analysis", "report")]
