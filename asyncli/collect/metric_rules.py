"""The table of products whose pages of metrics are read, and what their metrics mean. Data only.

metric_values.py applies it. To add a product: an entry here, and a page of it in
tests/metrics_pages.py. docs/reference/server-metrics.md is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from asyncli.model.metrics import (
    RUNTIME_ALLOCATED_BYTES,
    RUNTIME_COLLECTED_AT_S,
    RUNTIME_COLLECTIONS,
    RUNTIME_DESCRIPTORS,
    RUNTIME_GOAL_BYTES,
    RUNTIME_GOGC_PERCENT,
    RUNTIME_GOROUTINES,
    RUNTIME_HEAP_BYTES,
    RUNTIME_LIMIT_BYTES,
    RUNTIME_LIVE_BYTES,
    RUNTIME_OLD_LIMIT_BYTES,
    RUNTIME_OUTSIDE_BYTES,
    RUNTIME_OWN_BYTES,
    RUNTIME_STACKS_BYTES,
    STATUS_ACCEPTS,
    STATUS_ACTIVE,
    STATUS_HANDLED,
    STATUS_REQUESTS,
)

#: The product that a user describes with it.
MAPPED_PRODUCT = "--metrics-map"
#: mosquitto publishes it each time that it counts, whether anything has changed or not.
BROKER_UPTIME = "$SYS/broker/uptime"
#: Of a broker that has its own name in its topics.
NAMED_BROKER_UPTIME = "$SYS/+/uptime"
#: What a server counts, and asyncli too.
COUNTS = (STATUS_ACTIVE, STATUS_ACCEPTS, STATUS_HANDLED, STATUS_REQUESTS)


class Join(Enum):
    """How several rows of a metric become one value."""

    SUM = "sum"
    #: Each row counts the same: a request passes several handlers.
    MAX = "greatest"
    #: Of several frontends one serves our connections: that whose count of open ones rises most.
    RISEN = "the row that rises most"


class Reading(NamedTuple):
    """Where a page has a metric of ours.

    ``names``: on the page; several are added up. ``where``, ``unless``: the values that a label
    must have, or must not have. ``factor``: from the page's unit to ours. ``undefined``: the value
    by which a row says that it has none. ``counts_scrape``: whether reading the page counts in it:
    our connection, and each request.
    """

    metric: str
    names: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]] = {}
    unless: Mapping[str, tuple[str, ...]] = {}
    join: Join = Join.SUM
    factor: float = 1.0
    undefined: float | None = None
    counts_scrape: bool = False


class Product(NamedTuple):
    """A program, or a library in it, that writes metrics.

    ``recognised_by``: names that only its pages have; one is enough. ``measured``: seen on a real
    page of it, else only in its documentation. ``is_exporter``: another process than the server
    writes the page, so what the page says of a runtime is of no interest. ``refused``: why a page
    of it is of no use, "" if it is of use. ``unless``: names by which it is another product.

    Of several readings of one metric the first that is on a page is used.
    """

    name: str
    recognised_by: tuple[str, ...]
    readings: tuple[Reading, ...]
    measured: bool = True
    is_exporter: bool = False
    refused: str = ""
    unless: tuple[str, ...] = ()


_DESCRIPTORS = Reading(RUNTIME_DESCRIPTORS, ("process_open_fds",))
# A pool of the JVM that young collections free only by chance: Netty's buffers are in it, unless
# Netty takes them from the system itself.
_DIRECT = ("direct",)
_HEAP_AREA = {"area": ("heap",)}
# Pools of the JVM's collectors G1, parallel and serial that outlive young collections.
_OLD_POOLS = {"pool": ("G1 Old Gen", "PS Old Gen", "Tenured Gen")}
# Of these, the pools with a limit of their own: that of G1 is the heap's.
_FIXED_OLD_POOLS = ("PS Old Gen", "Tenured Gen")
_OLD_COLLECTORS = {"gc": ("G1 Old Generation", "PS MarkSweep", "MarkSweepCompact")}
# OpenTelemetry's word for the area.
_HEAP_TYPE = {"jvm_memory_type": ("heap",)}
_NANOSECOND = 1e-9
# What a broker publishes that writes its other topics as mosquitto does.
_OF_MOCHI = "$SYS/broker/started"
_OF_AMQTT = "$SYS/broker/heap/size"

#: In the order in which they are asked for a count of connections: servers, then runtimes.
PRODUCTS: tuple[Product, ...] = (
    # Its own administration, which serves the page, is left out of the counts.
    Product(
        "Envoy",
        ("envoy_http_downstream_cx_active",),
        (
            Reading(
                STATUS_ACTIVE,
                ("envoy_http_downstream_cx_active",),
                unless={"envoy_http_conn_manager_prefix": ("admin",)},
            ),
            Reading(
                STATUS_ACCEPTS,
                ("envoy_http_downstream_cx_total",),
                unless={"envoy_http_conn_manager_prefix": ("admin",)},
            ),
            Reading(
                STATUS_REQUESTS,
                ("envoy_http_downstream_rq_total",),
                unless={"envoy_http_conn_manager_prefix": ("admin",)},
            ),
            # Envoy writes it every 5 s.
            Reading(RUNTIME_ALLOCATED_BYTES, ("envoy_server_memory_allocated",)),
        ),
    ),
    # haproxy_process_... counts the page's frontend as well, and has NaN. A frontend in mode tcp
    # has no row of requests. Which frontend counts the scrape shows in the baseline.
    Product(
        "HAProxy",
        ("haproxy_frontend_current_sessions",),
        (
            Reading(STATUS_ACTIVE, ("haproxy_frontend_current_sessions",), join=Join.RISEN),
            Reading(STATUS_ACCEPTS, ("haproxy_frontend_connections_total",), join=Join.RISEN),
            Reading(STATUS_REQUESTS, ("haproxy_frontend_http_requests_total",), join=Join.RISEN),
            Reading(RUNTIME_ALLOCATED_BYTES, ("haproxy_process_pool_allocated_bytes",)),
        ),
    ),
    # It reads nginx's page by a kept connection of its own, once for each scrape: our connections
    # to it are not nginx's.
    Product(
        "nginx-prometheus-exporter",
        ("nginx_connections_active",),
        (
            Reading(STATUS_ACTIVE, ("nginx_connections_active",), counts_scrape=True),
            Reading(STATUS_ACCEPTS, ("nginx_connections_accepted",)),
            Reading(STATUS_HANDLED, ("nginx_connections_handled",)),
            Reading(STATUS_REQUESTS, ("nginx_http_requests_total",), counts_scrape=True),
        ),
        is_exporter=True,
    ),
    Product(
        "NATS",
        ("total_connections",),
        (
            Reading(STATUS_ACTIVE, ("connections",)),
            Reading(STATUS_ACCEPTS, ("total_connections",)),
        ),
    ),
    # Topics in place of a page (broker_topics.py). The memory of mochi-mqtt is whole spans of Go's
    # heap with its garbage, that of amqtt the process's, that of aedes V8's heap with its garbage:
    # none is what is alive.
    Product(
        "mochi-mqtt",
        (_OF_MOCHI,),
        (Reading(STATUS_ACTIVE, ("$SYS/broker/clients/connected",), counts_scrape=True),),
    ),
    Product(
        "amqtt",
        (_OF_AMQTT,),
        (Reading(STATUS_ACTIVE, ("$SYS/broker/clients/connected",), counts_scrape=True),),
    ),
    Product(
        "aedes",
        (NAMED_BROKER_UPTIME, "$SYS/+/clients/total"),
        (Reading(STATUS_ACTIVE, ("$SYS/+/clients/total",), counts_scrape=True),),
    ),
    # It forgets a count that has not changed for 60 s (2.0), so a subscriber may be told nothing
    # but the uptime at first.
    Product(
        "mosquitto",
        (BROKER_UPTIME, "$SYS/broker/clients/connected"),
        (
            Reading(STATUS_ACTIVE, ("$SYS/broker/clients/connected",), counts_scrape=True),
            Reading(RUNTIME_ALLOCATED_BYTES, ("$SYS/broker/heap/current",)),
            # Until 1.3.
            Reading(RUNTIME_ALLOCATED_BYTES, ("$SYS/broker/heap/current size",)),
        ),
        unless=(_OF_MOCHI, _OF_AMQTT),
    ),
    # Its administration, which serves the page, has counts of its own. It counts no connections.
    Product(
        "Caddy",
        ("caddy_http_requests_total", "caddy_admin_http_requests_total"),
        (Reading(STATUS_REQUESTS, ("caddy_http_requests_total",), join=Join.MAX),),
    ),
    Product(
        "Traefik",
        ("traefik_open_connections",),
        (
            Reading(
                STATUS_ACTIVE,
                ("traefik_open_connections",),
                unless={"entrypoint": ("traefik", "metrics")},
            ),
        ),
        measured=False,
    ),
    # The controller reads its nginx by a connection of its own.
    Product(
        "ingress-nginx",
        ("nginx_ingress_controller_nginx_process_connections",),
        (
            Reading(
                STATUS_ACTIVE,
                ("nginx_ingress_controller_nginx_process_connections",),
                where={"state": ("active",)},
                counts_scrape=True,
            ),
            Reading(
                STATUS_ACCEPTS,
                ("nginx_ingress_controller_nginx_process_connections_total",),
                where={"state": ("accepted",)},
            ),
            Reading(
                STATUS_HANDLED,
                ("nginx_ingress_controller_nginx_process_connections_total",),
                where={"state": ("handled",)},
            ),
            Reading(
                STATUS_REQUESTS,
                ("nginx_ingress_controller_nginx_process_requests_total",),
                counts_scrape=True,
            ),
        ),
        measured=False,
        is_exporter=True,
    ),
    Product(
        "EMQX",
        ("emqx_live_connections_count",),
        (Reading(STATUS_ACTIVE, ("emqx_live_connections_count",)),),
        measured=False,
    ),
    Product(
        "RabbitMQ",
        ("rabbitmq_connections",),
        (
            Reading(STATUS_ACTIVE, ("rabbitmq_connections",)),
            Reading(STATUS_ACCEPTS, ("rabbitmq_connections_opened_total",)),
        ),
        measured=False,
    ),
    # It connects for each scrape, so the total of connections is not used.
    Product(
        "redis_exporter",
        ("redis_connected_clients",),
        (Reading(STATUS_ACTIVE, ("redis_connected_clients",), counts_scrape=True),),
        measured=False,
        is_exporter=True,
    ),
    Product(
        "Centrifugo",
        ("centrifugo_node_num_clients",),
        (Reading(STATUS_ACTIVE, ("centrifugo_node_num_clients",)),),
        measured=False,
    ),
    Product(
        "Kestrel",
        ("kestrel_active_connections",),
        (Reading(STATUS_ACTIVE, ("kestrel_active_connections",), counts_scrape=True),),
        measured=False,
    ),
    Product(
        "Tomcat",
        ("tomcat_connections_current_connections",),
        (Reading(STATUS_ACTIVE, ("tomcat_connections_current_connections",), counts_scrape=True),),
        measured=False,
    ),
    Product(
        "Reactor Netty",
        ("reactor_netty_http_server_connections_active",),
        (
            Reading(
                STATUS_ACTIVE,
                ("reactor_netty_http_server_connections_active",),
                counts_scrape=True,
            ),
        ),
        measured=False,
    ),
    Product(
        "Vert.x",
        ("vertx_http_server_active_connections",),
        (Reading(STATUS_ACTIVE, ("vertx_http_server_active_connections",), counts_scrape=True),),
        measured=False,
    ),
    # nodejs_active_handles says the same of connections, so it is not added. All spaces but the new
    # ones outlive young collections: their size means something after a major one. Buffers are
    # outside V8's heap.
    Product(
        "Node",
        ("nodejs_heap_space_size_used_bytes", "nodejs_active_resources"),
        (
            Reading(
                STATUS_ACTIVE,
                ("nodejs_active_resources",),
                where={"type": ("TCPSocketWrap",)},
                counts_scrape=True,
            ),
            Reading(
                RUNTIME_HEAP_BYTES,
                ("nodejs_heap_space_size_used_bytes",),
                unless={"space": ("new", "new_large_object")},
            ),
            Reading(RUNTIME_OUTSIDE_BYTES, ("nodejs_external_memory_bytes",)),
            Reading(
                RUNTIME_COLLECTIONS,
                ("nodejs_gc_duration_seconds_count",),
                where={"kind": ("major",)},
            ),
            _DESCRIPTORS,
        ),
    ),
    # heap_inuse is whole spans, so it is not used.
    Product(
        "Go",
        ("go_memstats_heap_alloc_bytes",),
        (
            Reading(RUNTIME_HEAP_BYTES, ("go_memstats_heap_alloc_bytes",)),
            Reading(RUNTIME_LIVE_BYTES, ("go_gc_heap_live_bytes",)),
            Reading(RUNTIME_COLLECTIONS, ("go_gc_cycles_total_gc_cycles_total",)),
            Reading(RUNTIME_COLLECTIONS, ("go_gc_duration_seconds_count",)),
            Reading(RUNTIME_COLLECTED_AT_S, ("go_memstats_last_gc_time_seconds",)),
            Reading(RUNTIME_STACKS_BYTES, ("go_memstats_stack_inuse_bytes",)),
            Reading(RUNTIME_GOROUTINES, ("go_goroutines",)),
            Reading(RUNTIME_GOAL_BYTES, ("go_memstats_next_gc_bytes",)),
            Reading(
                RUNTIME_OWN_BYTES,
                (
                    "go_memstats_mspan_inuse_bytes",
                    "go_memstats_mcache_inuse_bytes",
                    "go_memstats_gc_sys_bytes",
                    "go_memstats_other_sys_bytes",
                ),
            ),
            Reading(RUNTIME_LIMIT_BYTES, ("go_gc_gomemlimit_bytes",)),
            Reading(RUNTIME_GOGC_PERCENT, ("go_gc_gogc_percent",)),
            _DESCRIPTORS,
        ),
    ),
    Product(
        "Go expvar",
        ("memstats.HeapAlloc",),
        (
            Reading(RUNTIME_HEAP_BYTES, ("memstats.HeapAlloc",)),
            Reading(RUNTIME_COLLECTIONS, ("memstats.NumGC",)),
            Reading(RUNTIME_COLLECTED_AT_S, ("memstats.LastGC",), factor=_NANOSECOND),
            Reading(RUNTIME_STACKS_BYTES, ("memstats.StackInuse",)),
            Reading(RUNTIME_GOAL_BYTES, ("memstats.NextGC",)),
            Reading(
                RUNTIME_OWN_BYTES,
                (
                    "memstats.MSpanInuse",
                    "memstats.MCacheInuse",
                    "memstats.GCSys",
                    "memstats.OtherSys",
                ),
            ),
        ),
    ),
    # The size of live data is 0 until a collection of the old generation; a pool without a limit
    # of its own has the limit -1.
    Product(
        "JVM, Micrometer",
        ("jvm_gc_live_data_size_bytes",),
        (
            Reading(RUNTIME_HEAP_BYTES, ("jvm_memory_used_bytes",), where=_HEAP_AREA),
            Reading(RUNTIME_LIVE_BYTES, ("jvm_gc_live_data_size_bytes",)),
            Reading(
                RUNTIME_OUTSIDE_BYTES, ("jvm_buffer_memory_used_bytes",), where={"id": _DIRECT}
            ),
            Reading(
                RUNTIME_COLLECTIONS,
                ("jvm_gc_pause_seconds_count",),
                where={"action": ("end of major GC",)},
            ),
            Reading(
                RUNTIME_LIMIT_BYTES, ("jvm_memory_max_bytes",), where=_HEAP_AREA, undefined=-1.0
            ),
            Reading(
                RUNTIME_OLD_LIMIT_BYTES,
                ("jvm_memory_max_bytes",),
                where={"id": _FIXED_OLD_POOLS},
                undefined=-1.0,
            ),
            Reading(RUNTIME_DESCRIPTORS, ("process_files_open_files",)),
        ),
    ),
    Product(
        "JVM, client_java",
        ("jvm_memory_pool_collection_used_bytes",),
        (
            Reading(RUNTIME_HEAP_BYTES, ("jvm_memory_used_bytes",), where=_HEAP_AREA),
            Reading(
                RUNTIME_LIVE_BYTES, ("jvm_memory_pool_collection_used_bytes",), where=_OLD_POOLS
            ),
            Reading(
                RUNTIME_OUTSIDE_BYTES, ("jvm_buffer_pool_used_bytes",), where={"pool": _DIRECT}
            ),
            Reading(
                RUNTIME_COLLECTIONS, ("jvm_gc_collection_seconds_count",), where=_OLD_COLLECTORS
            ),
            Reading(
                RUNTIME_LIMIT_BYTES, ("jvm_memory_max_bytes",), where=_HEAP_AREA, undefined=-1.0
            ),
            Reading(
                RUNTIME_OLD_LIMIT_BYTES,
                ("jvm_memory_pool_max_bytes",),
                where={"pool": _FIXED_OLD_POOLS},
                undefined=-1.0,
            ),
            _DESCRIPTORS,
        ),
        measured=False,
    ),
    Product(
        "JVM, OpenTelemetry",
        ("jvm_memory_used_after_last_gc_bytes",),
        (
            Reading(RUNTIME_HEAP_BYTES, ("jvm_memory_used_bytes",), where=_HEAP_TYPE),
            Reading(RUNTIME_LIVE_BYTES, ("jvm_memory_used_after_last_gc_bytes",), where=_HEAP_TYPE),
            Reading(
                RUNTIME_OUTSIDE_BYTES,
                ("jvm_buffer_memory_used_bytes",),
                where={"jvm_buffer_pool_name": _DIRECT},
            ),
            Reading(
                RUNTIME_LIMIT_BYTES, ("jvm_memory_limit_bytes",), where=_HEAP_TYPE, undefined=-1.0
            ),
        ),
        measured=False,
    ),
    Product(
        ".NET",
        ("dotnet_gc_last_collection_heap_size_bytes",),
        (
            Reading(RUNTIME_LIVE_BYTES, ("dotnet_gc_last_collection_heap_size_bytes",)),
            Reading(
                RUNTIME_COLLECTIONS,
                ("dotnet_gc_collections_total",),
                where={"gc_heap_generation": ("gen2",)},
            ),
        ),
        measured=False,
    ),
    Product("Python", ("python_info",), (_DESCRIPTORS,)),
    # Of cAdvisor 0.49: each row has an instant of its own, up to 10 s old; a cgroup's row has the
    # memory of those below it too, and was smaller than one of these. The kubelet's page and its
    # labels of pods by the documentation alone.
    Product(
        "cAdvisor, kubelet",
        (
            "container_memory_working_set_bytes",
            "container_memory_usage_bytes",
            "pod_memory_working_set_bytes",
        ),
        (),
        is_exporter=True,
        refused="is of cAdvisor: the memory of whole cgroups, page cache included, each read at an "
        "instant of its own",
    ),
)
