"""The last values of a broker's topics as a page of metrics, and which of them are of now. Pure.

A broker publishes its counts at an interval of its own (mosquitto: each ``sys_interval``, 10 s by
default), and most of them only if they have changed. So a count is what it was when the broker
counted, and no count may be missing because none changed. mosquitto 1.4 to 2.1 publish their uptime
in each interval, just before the counts (src/sys_tree.c).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from asyncli.collect.metric_rules import BROKER_UPTIME
from asyncli.collect.metrics_page import UNTYPED, Family, MetricsPage, Row
from asyncli.collect.mqtt_packets import Publication

# mosquitto writes "12 seconds" for its uptime.
_NUMBER = re.compile(rb"(?P<number>[-+.0-9A-Za-z]{1,40})(?: seconds)?")
_WILDCARDS = ("#", "+")
# No broker needs a longer topic for a count, and a page of metrics has longer names.
_LONGEST_TOPIC = 200


def topics_of(names: Iterable[str]) -> list[str]:
    """Those of the rules' names that are topics: they have levels, and no name of Prometheus has
    any.
    """
    topics = []
    for name in sorted(names):
        has_wildcard = any(wildcard in name for wildcard in _WILDCARDS)
        if "/" in name and not has_wildcard and len(name) <= _LONGEST_TOPIC:
            topics.append(name)
    return topics


class BrokerTopics:
    """The values of the topics that were subscribed to on one connection; others are ignored, so
    a broker cannot fill memory.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        self._values: dict[str, float] = {}
        self._published: set[str] = set()

    def take(self, publication: Publication) -> None:
        topic = publication.topic
        if topic not in self._topics:
            return
        value = _number(publication.payload)
        if value is None:
            self._values.pop(topic, None)
        else:
            self._values[topic] = value
        if not publication.is_retained:
            self._published.add(topic)

    def page(self) -> MetricsPage:
        """All that is known, of whatever age."""
        return _page(self._values)

    def page_of_now(self) -> MetricsPage:
        """What the broker has published since the last call; after its uptime also what it has not,
        because that had not changed.
        """
        published = self._published
        self._published = set()
        if BROKER_UPTIME in published:
            return _page(self._values)
        now = {topic: value for topic, value in self._values.items() if topic in published}
        return _page(now)


def _number(payload: bytes) -> float | None:
    """The number that a payload is; None if it is none."""
    match = _NUMBER.fullmatch(payload)
    if match is None:
        return None
    try:
        return float(match["number"])
    except ValueError:
        return None


def _page(values: dict[str, float]) -> MetricsPage:
    families = {topic: Family(UNTYPED, [Row({}, value)]) for topic, value in values.items()}
    return MetricsPage("topics", families)
