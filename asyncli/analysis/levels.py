"""Levels that several analyses share."""

from __future__ import annotations

#: Five that agree do so by chance one time in 32: fewer are no evidence at the usual 5 % (sign test).
FEWEST = 5
#: A share below this changes nothing that anybody decides.
WORTH_TELLING = 0.01
#: A part that matters, and what is all but that part.
PART, NEARLY_ALL = 0.1, 0.9
#: A page, a sample or a tick may miss a second or two; what is missing for longer than this (s) was not there.
MISSED_S = 2.5
#: What comes once a second is averaged over this long (s).
MINUTE_S = 60.0
