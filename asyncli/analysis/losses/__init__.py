"""Why connections ended.

A run records, for each second and cause, how many connections ended, how old they were, how long idle and after how many
requests. The :class:`~asyncli.analysis.losses.table.LossTable` has a cell for each second and cause. Mechanisms claim cells, or
the part of a cell in which one of the three numbers lies in a stretch; what one has claimed is gone for the next. They are asked
in the order of :mod:`attribution`: those first that the run itself or the server bears out (``certain``), then likelihoods. What
nobody claims is unknown.

| module | what it claims | by what evidence |
|---|---|---|
| recorded | what asyncli itself did or noted | its findings, suspensions, the silence of a client host, HTTP errors |
| timeouts | what a timer or a limit ended | a narrow mode of age, idle time or request number; nginx.conf |
| bursts | what ended at one moment, or for want of room | the instants; the server's processes and its own counts |
| unanswered | heartbeats without a whole answer | what was sent again, requests that the server counted, bytes |

:mod:`likelihood` tells what stands out among numbers from what random moments show; :mod:`server_evidence` what the samples say
of the server at a moment. :mod:`slowness` names troubles that ended no connection. :mod:`asyncli.findings.causes` has the
sentences. Each mechanism is provoked on a real server or network in tests/integration; docs/faults.md has what the report says.
"""
