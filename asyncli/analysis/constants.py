"""Levels that several analyses share."""

from __future__ import annotations

#: Five agree by chance one time in 32, less than the usual 5 % (sign test).
FEWEST = 5
#: A smaller share changes no decision.
WORTH_TELLING = 0.01
#: A share that matters, and the rest of it.
PART, NEARLY_ALL = 0.1, 0.9
#: What rises by half as much as the connections may hold them; what rises by less is other work,
#: such as files that are opened.
HALF = 0.5
#: A limit counts as reached at this share: readings come once a second and lag.
REACHED = 0.95
#: Status pages, samples and ticks may miss a second or two; a longer silence (s) is a gap.
MISSED_S = 2.5
#: An nginx worker with a smaller share of its slots free closes idle connections
#: (ngx_drain_connections).
REUSE_BELOW = 1 / 16
#: Values that are read once a second are averaged over this time (s).
MINUTE_S = 60.0
