"""What the server's pages of metrics did not say, though they were read. Pure."""

from __future__ import annotations

from asyncli.analysis.constants import FEWEST, PART
from asyncli.findings.probes import probe_lost
from asyncli.model import metrics
from asyncli.model.metrics_map import MAPPED, mapped_metric
from asyncli.model.records import Finding, Sample
from asyncli.model.run import Run
from asyncli.model.units import format_count, format_many

_OF_RUNTIME = "runtime."
# What asyncli asked the runtime for, and no page.
_OF_COLLECT = frozenset(
    {
        metrics.RUNTIME_FORCED_BYTES,
        metrics.RUNTIME_FORCED_OUTSIDE_BYTES,
        metrics.RUNTIME_FORCED_S,
    }
)
# Each connection that the server accepts changes them.
_FOLLOW_CONNECTIONS = (metrics.STATUS_ACTIVE, metrics.RUNTIME_DESCRIPTORS)
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
    gaps = _of_named_metrics(run)
    if not names and not any(name.startswith(metrics.PAGE) for name in run.metrics):
        why = (
            f"no value of the page {' and '.join(urls)} could be used: each is NaN, infinite, "
            "negative or impossibly large"
        )
        return gaps or [_told(0.0, why)]
    # Of several pages each has its own interval, and a broker publishes only what has changed.
    if len(urls) > 1 or urls[0].startswith("mqtt"):
        return gaps
    return [*gaps, *_repeated(run, names), *_lost_metrics(run, names)]


def _told(from_s: float, why: str) -> Finding:
    return probe_lost("metrics", from_s, why, untrusted=False)


def _of_named_metrics(run: Run) -> list[Finding]:
    """A finding on what --metrics-map names and no page had, or only with values that cannot be
    its.
    """
    value_of = {}
    for metric in run.place.unusable_metrics:
        name, _, value = metric.rpartition("=")
        value_of[name] = value
    unusable = []
    for text in run.plan.metrics_map:
        mapped = mapped_metric(text)
        source = run.place.count_source
        is_other = source is not None and source.metric != mapped.name
        is_counted_otherwise = mapped.meaning == "active" and is_other
        if is_counted_otherwise or not run.series(MAPPED[mapped.meaning]):
            written = value_of.get(mapped.name)
            unusable.append(text if written is None else f"{text} ({written})")
    if not unusable:
        return []
    return [probe_lost("metrics", 0.0, "", untrusted=False, unusable=unusable)]


def _repeated(run: Run, names: list[str]) -> list[Finding]:
    """A finding on a page that said the same again and again while connections were opened, though
    it counts them, or descriptors.
    """
    if not any(name in names for name in _FOLLOW_CONNECTIONS):
        return []
    hold = run.phase("hold")
    ramp_end_s = run.stop_s if hold is None else hold.start_s
    opened = max(run.held.values, default=0.0)
    alike: list[Sample] = []
    for sample in run.samples:
        if not run.first_connect_s <= sample.t_s <= ramp_end_s:
            continue
        if not any(name in sample.values for name in names):
            continue
        if alike and any(alike[0].values.get(name) != sample.values.get(name) for name in names):
            alike = []
        alike.append(sample)
        came = (run.held.at(sample.t_s) or 0.0) - (run.held.at(alike[0].t_s) or 0.0)
        if len(alike) > FEWEST and came > PART * opened:
            why = (
                f"the server's page said the same {format_count(len(alike))} times while "
                f"{format_many(round(came), 'connection')} were opened: it is kept by a cache, or "
                "another server's"
            )
            return [_told(alike[0].t_s, why)]
    return []


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
    return [_told(from_s, f"the server's page had no usable value any more of {', '.join(lost)}")]
