"""Why connections ended.

A run records, per second and cause, how many connections ended, and histograms of their ages, idle
times and request numbers.
:class:`~asyncli.analysis.losses.table.LossTable` has a cell for each second and cause. Mechanisms
claim cells, or the part of a cell in a range of one of the histograms, in the order of
:mod:`attribution`: first those that the run or the server confirms (``certain``), then likely ones.
The rest has an unknown cause.

| module | what it claims | evidence |
|---|---|---|
| recorded | what asyncli recorded itself | its findings, suspensions, silent client hosts, HTTP
errors |
| timeouts | losses by a timer or a limit | a narrow mode of age, idle time or request number;
nginx.conf |
| bursts | losses at one moment, or for lack of slots | the instants; the server's processes and
counts |
| unanswered | heartbeats without a complete answer | retransmissions, requests that the server
counted, bytes |

:mod:`likelihood` has the statistics, :mod:`server_evidence` the evidence of samples about the
server, :mod:`slowness` faults that ended no connection. docs/reference/faults.md lists the faults
that tests provoke.
"""
