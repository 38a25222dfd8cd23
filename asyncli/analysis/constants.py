"""Levels that several analyses share."""

from __future__ import annotations

#: Five that agree do so by chance one time in 32: the usual 5 % (sign test).
FEWEST = 5
#: A smaller share changes no decision.
WORTH_TELLING = 0.01
#: A share that matters, and the rest of it.
PART, NEARLY_ALL = 0.1, 0.9
#: Pages, samples and ticks may miss a second or two; a longer silence (s) is a gap.
MISSED_S = 2.5
#: What comes once a second is averaged over this time (s).
MINUTE_S = 60.0
