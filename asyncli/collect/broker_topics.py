"""The last values of a broker's topics as a page of metrics, and which of them are of now. Pure.

A broker publishes its counts at an interval of its own (mosquitto: each ``sys_interval``, 10 s by
default), so a count is what it was when the broker counted. mosquitto publishes most of them only
if they have changed, and in each interval its uptime, just before the counts (1.4 to 2.1,
src/sys_tree.c): no count may be missing because none changed. Other brokers publish all of them
each time, in any order (mochi-mqtt), or with pauses in between (amqtt): their uptime says nothing
of the others. mosquitto alone writes a unit to its uptime.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from asyncli.collect.metric_rules import BROKER_UPTIME
from asyncli.collect.metrics_page import UNTYPED, Family, MetricsPage, Row
from asyncli.collect.mqtt_packets import Publication

_NUMBER = re.compile(rb"(?P<number>[-+.0-9A-Za-z]{1,40})(?P<unit> seconds)?")
_ONE_LEVEL = "+"
# A broker's name may be any but this level, which brokers without a name have ($SYS/broker/...).
_NO_NAME = "broker"
# No broker needs a longer topic for a count, and a page of metrics has longer names.
_LONGEST_TOPIC = 200


def topics_of(names: Iterable[str]) -> list[str]:
    """Those of the rules' names that are topics: they have levels, and no name of Prometheus has
    any. A level may be "+", for the broker's name.
    """
    return [name for name in sorted(names) if _is_topic(name)]


def _is_topic(name: str) -> bool:
    if "/" not in name or "#" in name or len(name) > _LONGEST_TOPIC:
        return False
    return all(_ONE_LEVEL not in level or level == _ONE_LEVEL for level in name.split("/"))


def _matches(levels: Sequence[str], topic: Sequence[str]) -> bool:
    """Whether a topic is one of a name with "+"."""
    if len(levels) != len(topic):
        return False
    for level, of_topic in zip(levels, topic, strict=True):
        if level == _ONE_LEVEL and of_topic == _NO_NAME:
            return False
        if level not in (_ONE_LEVEL, of_topic):
            return False
    return True


class BrokerTopics:
    """The values of the topics that were subscribed to on one connection; others are ignored, so
    a broker cannot fill memory. Values are by the names that were subscribed to, with their "+".
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        self._with_wildcard = [topic for topic in topics if _ONE_LEVEL in topic]
        #: A name with "+" -> the topic of it that is published now.
        self._topic_of: dict[str, str] = {}
        self._ambiguous: set[str] = set()
        self._values: dict[str, float] = {}
        self._published: set[str] = set()
        #: Whether the broker leaves out what has not changed: mosquitto.
        self._omits_unchanged = False

    def take(self, publication: Publication) -> None:
        name = self._name_of(publication)
        if not name:
            return
        number = _NUMBER.fullmatch(publication.payload)
        value = _value(number)
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        if name == BROKER_UPTIME and number is not None:
            self._omits_unchanged = number["unit"] is not None
        if not publication.is_retained:
            self._published.add(name)

    def _name_of(self, publication: Publication) -> str:
        """The name that a publication was subscribed to by; "" if it is of no use."""
        topic = publication.topic
        if topic in self._topics:
            return topic
        for name in self._with_wildcard:
            if _matches(name.split("/"), topic.split("/")):
                return name if self._is_only(name, publication) else ""
        return ""

    def _is_only(self, name: str, publication: Publication) -> bool:
        """Whether no other broker publishes this too: neither has then the count of all. What is
        retained may be of one that was there before.
        """
        if publication.is_retained and name in self._topic_of:
            return False
        if not publication.is_retained:
            first = self._topic_of.setdefault(name, publication.topic)
            if first != publication.topic:
                self._ambiguous.add(name)
                self._values.pop(name, None)
        return name not in self._ambiguous

    def page(self) -> MetricsPage:
        """All that is known, of whatever age."""
        return _page(self._values)

    def page_of_now(self) -> MetricsPage:
        """What the broker has published since the last call; after mosquitto's uptime also what it
        has not, because that had not changed.
        """
        published = self._published
        self._published = set()
        if BROKER_UPTIME in published and self._omits_unchanged:
            return _page(self._values)
        now = {topic: value for topic, value in self._values.items() if topic in published}
        return _page(now)


def _value(match: re.Match[bytes] | None) -> float | None:
    """The number that a payload is; None if it is none."""
    if match is None:
        return None
    try:
        return float(match["number"])
    except ValueError:
        return None


def _page(values: dict[str, float]) -> MetricsPage:
    families = {topic: Family(UNTYPED, [Row({}, value)]) for topic, value in values.items()}
    return MetricsPage("topics", families)
