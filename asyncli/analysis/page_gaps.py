"""What the server's pages of metrics did not say, though they were read. Pure."""

from __future__ import annotations

from asyncli.analysis.constants import FEWEST
from asyncli.findings.probes import probe_lost
from asyncli.model import metrics
from asyncli.model.records import Finding
from asyncli.model.run import Run

_PROBE = "metrics"
_OF_RUNTIME = "runtime."
# What asyncli asked the runtime for, and no page.
_OF_COLLECT = frozenset({metrics.RUNTIME_FORCED_BYTES, metrics.RUNTIME_FORCED_S})
_COUNTS = (
    metrics.STATUS_ACTIVE,
    metrics.STATUS_ACCEPTS,
    metrics.STATUS_HANDLED,
    metrics.STATUS_REQUESTS,
)


def page_gaps(run: Run) -> list[Finding]:
    """Findings on pages that were read without use."""
    urls = run.place.metrics_urls
    if not urls:
        return []
    names = _metrics_of_pages(run)
    if not names and not any(name.startswith(metrics.PAGE) for name in run.metrics):
        why = (
            f"no value of the page {' and '.join(urls)} could be used: each is NaN, infinite, "
            "negative or impossibly large"
        )
        return [probe_lost(_PROBE, 0.0, why, untrusted=False)]
    # Of several pages each has its own interval, and a broker publishes only what has changed.
    if len(urls) > 1 or urls[0].startswith("mqtt"):
        return []
    return _lost_metrics(run, names)


def _metrics_of_pages(run: Run) -> list[str]:
    """The metrics of the run that its pages of metrics gave, without rows that may count."""
    names = []
    for name in sorted(run.metrics):
        if name.startswith(_OF_RUNTIME) and name not in _OF_COLLECT:
            names.append(name)
    # With a status page the counts are that one's.
    if run.plan.status_url is None:
        names += [name for name in _COUNTS if run.series(name)]
    return names


def _lost_metrics(run: Run, names: list[str]) -> list[Finding]:
    """A finding on metrics that no page had any more from an instant of the run on."""
    read_s = []
    last_s = dict.fromkeys(names, 0.0)
    for sample in run.samples:
        if sample.t_s > run.stop_s:
            break
        present = [name for name in names if name in sample.values]
        if present:
            read_s.append(sample.t_s)
        for name in present:
            last_s[name] = sample.t_s
    lost = []
    from_s = run.stop_s
    for name in names:
        later = [t_s for t_s in read_s if t_s > last_s[name]]
        # A page or two without a metric may be a moment of the server's.
        if len(later) < FEWEST:
            continue
        lost.append(name)
        from_s = min(from_s, later[0])
    if not lost:
        return []
    why = f"the server's page had no usable value any more of {', '.join(lost)}"
    return [probe_lost(_PROBE, from_s, why, untrusted=False)]
