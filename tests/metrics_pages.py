"""Recorded pages of metrics of real servers, some of them shortened."""

# Node 20.20.2 with prom-client, after one forced collection.
NODE = r"""# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 22
# HELP nodejs_eventloop_lag_min_seconds The minimum recorded event loop delay.
# TYPE nodejs_eventloop_lag_min_seconds gauge
nodejs_eventloop_lag_min_seconds 9223372036.854776
# HELP nodejs_eventloop_lag_mean_seconds The mean of the recorded event loop delays.
# TYPE nodejs_eventloop_lag_mean_seconds gauge
nodejs_eventloop_lag_mean_seconds Nan
# HELP nodejs_active_resources Number of active resources that are currently keeping the event loop alive, grouped by async resource type.
# TYPE nodejs_active_resources gauge
nodejs_active_resources{type="TCPServerWrap"} 1
nodejs_active_resources{type="TCPSocketWrap"} 1
nodejs_active_resources{type="Immediate"} 1
# HELP nodejs_active_resources_total Total number of active resources.
# TYPE nodejs_active_resources_total gauge
nodejs_active_resources_total 3
# HELP nodejs_active_handles Number of active libuv handles grouped by handle type. Every handle type is C++ class name.
# TYPE nodejs_active_handles gauge
nodejs_active_handles{type="Server"} 1
nodejs_active_handles{type="Socket"} 1
# HELP nodejs_heap_size_total_bytes Process heap size from Node.js in bytes.
# TYPE nodejs_heap_size_total_bytes gauge
nodejs_heap_size_total_bytes 9936896
# HELP nodejs_heap_size_used_bytes Process heap size used from Node.js in bytes.
# TYPE nodejs_heap_size_used_bytes gauge
nodejs_heap_size_used_bytes 5368128
# HELP nodejs_heap_space_size_used_bytes Process heap space size used from Node.js in bytes.
# TYPE nodejs_heap_space_size_used_bytes gauge
nodejs_heap_space_size_used_bytes{space="read_only"} 0
nodejs_heap_space_size_used_bytes{space="new"} 435544
nodejs_heap_space_size_used_bytes{space="old"} 4432080
nodejs_heap_space_size_used_bytes{space="code"} 242192
nodejs_heap_space_size_used_bytes{space="shared"} 0
nodejs_heap_space_size_used_bytes{space="new_large_object"} 0
nodejs_heap_space_size_used_bytes{space="large_object"} 262160
nodejs_heap_space_size_used_bytes{space="code_large_object"} 0
nodejs_heap_space_size_used_bytes{space="shared_large_object"} 0
# HELP nodejs_version_info Node.js version info.
# TYPE nodejs_version_info gauge
nodejs_version_info{version="v20.20.2",major="20",minor="20",patch="2"} 1
# HELP nodejs_gc_duration_seconds Garbage collection duration by kind, one of major, minor, incremental or weakcb.
# TYPE nodejs_gc_duration_seconds histogram
nodejs_gc_duration_seconds_sum{kind="major"} 0.009550892999977805
nodejs_gc_duration_seconds_count{kind="major"} 1
"""

# Go 1.26.8 with client_golang 1.25.0 and all metrics of runtime/metrics.
GO = r"""# HELP go_gc_cycles_total_gc_cycles_total Count of all completed GC cycles. Sourced from /gc/cycles/total:gc-cycles.
# TYPE go_gc_cycles_total_gc_cycles_total counter
go_gc_cycles_total_gc_cycles_total 1
# HELP go_gc_duration_seconds A summary of the wall-time pause (stop-the-world) duration in garbage collection cycles.
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0"} 0.000562634
go_gc_duration_seconds{quantile="0.25"} 0.000562634
go_gc_duration_seconds{quantile="0.5"} 0.000562634
go_gc_duration_seconds{quantile="0.75"} 0.000562634
go_gc_duration_seconds{quantile="1"} 0.000562634
go_gc_duration_seconds_sum 0.000562634
go_gc_duration_seconds_count 1
# HELP go_gc_gogc_percent Heap size target percentage configured by the user, otherwise 100. This value is set by the GOGC environment variable, and the runtime/debug.SetGCPercent function. Sourced from /gc/gogc:percent.
# TYPE go_gc_gogc_percent gauge
go_gc_gogc_percent 100
# HELP go_gc_gomemlimit_bytes Go runtime memory limit configured by the user, otherwise math.MaxInt64. This value is set by the GOMEMLIMIT environment variable, and the runtime/debug.SetMemoryLimit function. Sourced from /gc/gomemlimit:bytes.
# TYPE go_gc_gomemlimit_bytes gauge
go_gc_gomemlimit_bytes 9.223372036854776e+18
# HELP go_gc_heap_live_bytes Heap memory occupied by live objects that were marked by the previous GC. Sourced from /gc/heap/live:bytes.
# TYPE go_gc_heap_live_bytes gauge
go_gc_heap_live_bytes 461648
# HELP go_info Information about the Go environment.
# TYPE go_info gauge
go_info{version="go1.26.8"} 1
# HELP go_memstats_gc_sys_bytes Number of bytes used for garbage collection system metadata. Equals to /memory/classes/metadata/other:bytes.
# TYPE go_memstats_gc_sys_bytes gauge
go_memstats_gc_sys_bytes 2.14808e+06
# HELP go_memstats_heap_alloc_bytes Number of heap bytes allocated and currently in use, same as go_memstats_alloc_bytes. Equals to /memory/classes/heap/objects:bytes.
# TYPE go_memstats_heap_alloc_bytes gauge
go_memstats_heap_alloc_bytes 582496
# HELP go_memstats_heap_inuse_bytes Number of heap bytes that are in use. Equals to /memory/classes/heap/objects:bytes + /memory/classes/heap/unused:bytes
# TYPE go_memstats_heap_inuse_bytes gauge
go_memstats_heap_inuse_bytes 1.769472e+06
# HELP go_memstats_last_gc_time_seconds Number of seconds since 1970 of last garbage collection.
# TYPE go_memstats_last_gc_time_seconds gauge
go_memstats_last_gc_time_seconds 1.795893576330953e+09
# HELP go_memstats_mcache_inuse_bytes Number of bytes in use by mcache structures. Equals to /memory/classes/metadata/mcache/inuse:bytes.
# TYPE go_memstats_mcache_inuse_bytes gauge
go_memstats_mcache_inuse_bytes 4592
# HELP go_memstats_mspan_inuse_bytes Number of bytes in use by mspan structures. Equals to /memory/classes/metadata/mspan/inuse:bytes.
# TYPE go_memstats_mspan_inuse_bytes gauge
go_memstats_mspan_inuse_bytes 34240
# HELP go_memstats_next_gc_bytes Number of heap bytes when next garbage collection will take place. Equals to /gc/heap/goal:bytes.
# TYPE go_memstats_next_gc_bytes gauge
go_memstats_next_gc_bytes 4.194304e+06
# HELP go_memstats_other_sys_bytes Number of bytes used for other system allocations. Equals to /memory/classes/other:bytes.
# TYPE go_memstats_other_sys_bytes gauge
go_memstats_other_sys_bytes 568207
# HELP go_memstats_stack_inuse_bytes Number of bytes obtained from system for stack allocator in non-CGO environments. Equals to /memory/classes/heap/stacks:bytes.
# TYPE go_memstats_stack_inuse_bytes gauge
go_memstats_stack_inuse_bytes 425984
# HELP http_request_duration_seconds d
# TYPE http_request_duration_seconds histogram
http_request_duration_seconds_sum{m="GET",p="/a"} 0.02
http_request_duration_seconds_count{m="GET",p="/a"} 1
http_request_duration_seconds_sum{m="GET",p="/b"} 0.02
http_request_duration_seconds_count{m="GET",p="/b"} 1
http_request_duration_seconds_sum{m="GET",p="/c{\"x\"}"} 0.02
http_request_duration_seconds_count{m="GET",p="/c{\"x\"}"} 1
http_request_duration_seconds_sum{m="GET",p="/d,e"} 0.02
http_request_duration_seconds_count{m="GET",p="/d,e"} 1
http_request_duration_seconds_sum{m="GET",p="/f\n\\g"} 0.02
http_request_duration_seconds_count{m="GET",p="/f\n\\g"} 1
# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 11
"""

# The same program, asked for OpenMetrics.
OPENMETRICS = r"""# HELP go_gc_cycles_total_gc_cycles Count of all completed GC cycles. Sourced from /gc/cycles/total:gc-cycles.
# TYPE go_gc_cycles_total_gc_cycles counter
go_gc_cycles_total_gc_cycles_total 1.0
# HELP go_gc_gogc_percent Heap size target percentage configured by the user, otherwise 100. This value is set by the GOGC environment variable, and the runtime/debug.SetGCPercent function. Sourced from /gc/gogc:percent.
# TYPE go_gc_gogc_percent gauge
go_gc_gogc_percent 100.0
# HELP go_gc_heap_live_bytes Heap memory occupied by live objects that were marked by the previous GC. Sourced from /gc/heap/live:bytes.
# TYPE go_gc_heap_live_bytes gauge
go_gc_heap_live_bytes 461648.0
# HELP go_info Information about the Go environment.
# TYPE go_info gauge
go_info{version="go1.26.8"} 1.0
# HELP go_memstats_heap_alloc_bytes Number of heap bytes allocated and currently in use, same as go_memstats_alloc_bytes. Equals to /memory/classes/heap/objects:bytes.
# TYPE go_memstats_heap_alloc_bytes gauge
go_memstats_heap_alloc_bytes 1.07556e+06
# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 11.0
# EOF
"""

# Caddy 2.6.2 (Go 1.19.8), after three requests.
CADDY = r"""# HELP caddy_admin_http_requests_total Counter of requests made to the Admin API's HTTP endpoints.
# TYPE caddy_admin_http_requests_total counter
caddy_admin_http_requests_total{code="200",handler="metrics",method="GET",path="/metrics"} 1
# HELP caddy_http_requests_in_flight Number of requests currently handled by this server.
# TYPE caddy_http_requests_in_flight gauge
caddy_http_requests_in_flight{handler="subroute",server="srv0"} 0
# HELP caddy_http_requests_total Counter of HTTP(S) requests made.
# TYPE caddy_http_requests_total counter
caddy_http_requests_total{handler="subroute",server="srv0"} 3
# HELP go_gc_duration_seconds A summary of the pause duration of garbage collection cycles.
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0"} 0.000134131
go_gc_duration_seconds{quantile="0.25"} 0.000134131
go_gc_duration_seconds{quantile="0.5"} 0.000277371
go_gc_duration_seconds{quantile="0.75"} 0.000277371
go_gc_duration_seconds{quantile="1"} 0.000277371
go_gc_duration_seconds_sum 0.000411502
go_gc_duration_seconds_count 2
# HELP go_info Information about the Go environment.
# TYPE go_info gauge
go_info{version="go1.19.8"} 1
# HELP go_memstats_gc_sys_bytes Number of bytes used for garbage collection system metadata.
# TYPE go_memstats_gc_sys_bytes gauge
go_memstats_gc_sys_bytes 9.352272e+06
# HELP go_memstats_heap_alloc_bytes Number of heap bytes allocated and still in use.
# TYPE go_memstats_heap_alloc_bytes gauge
go_memstats_heap_alloc_bytes 2.64896e+06
# HELP go_memstats_heap_inuse_bytes Number of heap bytes that are in use.
# TYPE go_memstats_heap_inuse_bytes gauge
go_memstats_heap_inuse_bytes 4.79232e+06
# HELP go_memstats_last_gc_time_seconds Number of seconds since 1970 of last garbage collection.
# TYPE go_memstats_last_gc_time_seconds gauge
go_memstats_last_gc_time_seconds 1.7958935732418113e+09
# HELP go_memstats_mcache_inuse_bytes Number of bytes in use by mcache structures.
# TYPE go_memstats_mcache_inuse_bytes gauge
go_memstats_mcache_inuse_bytes 2400
# HELP go_memstats_mspan_inuse_bytes Number of bytes in use by mspan structures.
# TYPE go_memstats_mspan_inuse_bytes gauge
go_memstats_mspan_inuse_bytes 67680
# HELP go_memstats_next_gc_bytes Number of heap bytes when next garbage collection will take place.
# TYPE go_memstats_next_gc_bytes gauge
go_memstats_next_gc_bytes 5.550776e+06
# HELP go_memstats_other_sys_bytes Number of bytes used for other system allocations.
# TYPE go_memstats_other_sys_bytes gauge
go_memstats_other_sys_bytes 485599
# HELP go_memstats_stack_inuse_bytes Number of bytes in use by the stack allocator.
# TYPE go_memstats_stack_inuse_bytes gauge
go_memstats_stack_inuse_bytes 688128
# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 12
"""

# HAProxy 2.6.12: the frontend web had three requests, and prom serves this page the second time.
HAPROXY = r"""# HELP haproxy_process_current_connections Current number of connections on this worker process
# TYPE haproxy_process_current_connections gauge
haproxy_process_current_connections 1
# HELP haproxy_process_connections_total Total number of connections on this worker process since started
# TYPE haproxy_process_connections_total counter
haproxy_process_connections_total 5
# HELP haproxy_process_requests_total Total number of requests on this worker process since started
# TYPE haproxy_process_requests_total counter
haproxy_process_requests_total 5
# HELP haproxy_process_current_zlib_memory Amount of memory currently used by HTTP compression on the current worker process (in bytes)
# TYPE haproxy_process_current_zlib_memory gauge
haproxy_process_current_zlib_memory NaN
# HELP haproxy_process_pool_allocated_bytes Amount of memory allocated in pools (in bytes)
# TYPE haproxy_process_pool_allocated_bytes gauge
haproxy_process_pool_allocated_bytes 123832
# HELP haproxy_process_pool_used_bytes Amount of pool memory currently used (in bytes)
# TYPE haproxy_process_pool_used_bytes gauge
haproxy_process_pool_used_bytes 123832
# HELP haproxy_frontend_current_sessions Number of current sessions on the frontend, backend or server
# TYPE haproxy_frontend_current_sessions gauge
haproxy_frontend_current_sessions{proxy="web"} 0
haproxy_frontend_current_sessions{proxy="prom"} 1
# HELP haproxy_frontend_status Current status of the service, per state label value.
# TYPE haproxy_frontend_status gauge
haproxy_frontend_status{proxy="web",state="DOWN"} 0
haproxy_frontend_status{proxy="web",state="UP"} 1
haproxy_frontend_status{proxy="prom",state="DOWN"} 0
haproxy_frontend_status{proxy="prom",state="UP"} 1
# HELP haproxy_frontend_http_requests_total Total number of HTTP requests processed by this object since the worker process started
# TYPE haproxy_frontend_http_requests_total counter
haproxy_frontend_http_requests_total{proxy="web"} 3
haproxy_frontend_http_requests_total{proxy="prom"} 2
# HELP haproxy_frontend_connections_total Total number of new connections accepted on this frontend since the worker process started
# TYPE haproxy_frontend_connections_total counter
haproxy_frontend_connections_total{proxy="web"} 3
haproxy_frontend_connections_total{proxy="prom"} 2
"""

# nginx-prometheus-exporter 0.11.0, which reads an nginx's page for each of its own.
NGINX_EXPORTER = r"""# HELP nginx_connections_accepted Accepted client connections
# TYPE nginx_connections_accepted counter
nginx_connections_accepted 1
# HELP nginx_connections_active Active client connections
# TYPE nginx_connections_active gauge
nginx_connections_active 1
# HELP nginx_connections_handled Handled client connections
# TYPE nginx_connections_handled counter
nginx_connections_handled 1
# HELP nginx_connections_reading Connections where NGINX is reading the request header
# TYPE nginx_connections_reading gauge
nginx_connections_reading 0
# HELP nginx_connections_waiting Idle client connections
# TYPE nginx_connections_waiting gauge
nginx_connections_waiting 0
# HELP nginx_connections_writing Connections where NGINX is writing the response back to the client
# TYPE nginx_connections_writing gauge
nginx_connections_writing 1
# HELP nginx_http_requests_total Total http requests
# TYPE nginx_http_requests_total counter
nginx_http_requests_total 3
# HELP nginx_up Status of the last metric scrape
# TYPE nginx_up gauge
nginx_up 1
# HELP nginxexporter_build_info Exporter build information
# TYPE nginxexporter_build_info gauge
nginxexporter_build_info{arch="linux/amd64",commit="",date="",dirty="false",go="go1.19.8",version="0.11.0-1+b4"} 1
"""

# nats-server 2.9.10.
NATS = r"""{
  "server_id": "NDKCE2ND6S3QNS53X7W3NVCHWIVMTNSEGWHLBIPCIGDFSTMH2XCWVSOL",
  "server_name": "NDKCE2ND6S3QNS53X7W3NVCHWIVMTNSEGWHLBIPCIGDFSTMH2XCWVSOL",
  "version": "2.9.10",
  "proto": 1,
  "go": "go1.19.8",
  "host": "0.0.0.0",
  "port": 19140,
  "max_connections": 65536,
  "ping_interval": 120000000000,
  "ping_max": 2,
  "http_host": "0.0.0.0",
  "http_port": 19141,
  "http_base_path": "",
  "https_port": 0,
  "auth_timeout": 2,
  "max_control_line": 4096,
  "max_payload": 1048576,
  "max_pending": 67108864,
  "cluster": {},
  "gateway": {},
  "leaf": {},
  "mqtt": {},
  "websocket": {},
  "jetstream": {},
  "tls_timeout": 2,
  "write_deadline": 10000000000,
  "start": "2026-11-28T19:19:33.184701692Z",
  "now": "2026-11-28T19:19:36.46316653Z",
  "uptime": "3s",
  "mem": 12029952,
  "cores": 2,
  "gomaxprocs": 2,
  "cpu": 0,
  "connections": 0,
  "total_connections": 0,
  "routes": 0,
  "remotes": 0,
  "leafnodes": 0,
  "in_msgs": 0,
  "out_msgs": 0,
  "in_bytes": 0,
  "out_bytes": 0,
  "slow_consumers": 0,
  "subscriptions": 43,
  "http_req_stats": {
    "/varz": 2
  },
  "config_load_time": "2026-11-28T19:19:33.184701692Z",
  "system_account": "$SYS"
}"""

# expvar of the same Go program; the long lists are cut.
EXPVAR = r"""{"cmdline": ["go/g"], "memstats": {"Alloc": 1050920, "TotalAlloc": 1326912, "Sys": 8419592, "Lookups": 0, "Mallocs": 10932, "Frees": 3130,
"HeapAlloc": 1050920, "HeapSys": 3768320, "HeapIdle": 1662976, "HeapInuse": 2105344, "HeapReleased": 1613824, "HeapObjects": 7802,
"StackInuse": 425984, "StackSys": 425984, "MSpanInuse": 34240, "MSpanSys": 48960, "MCacheInuse": 4592, "MCacheSys": 16072, "BuckHashSys":
1443969, "GCSys": 2241264, "OtherSys": 475023, "NextGC": 4194304, "LastGC": 1795893576330952837, "PauseTotalNs": 562634, "PauseNs": [562634,
0], "PauseEnd": [1795893576330952837, 0], "NumGC": 1, "NumForcedGC": 1, "GCCPUFraction": 0.0001604178444427754, "EnableGC": true, "DebugGC":
false}}"""

# cAdvisor 0.49.1 as the kubelet has it in itself (a program with its manager and its collector), on cgroups of version 1. With labels of pods
# and containers only its documentation. The row of the whole is smaller than that of a part.
CADVISOR = r"""# HELP cadvisor_version_info A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.
# TYPE cadvisor_version_info gauge
cadvisor_version_info{cadvisorRevision="",cadvisorVersion="",dockerVersion="",kernelVersion="",osVersion="Debian GNU/Linux 12 (bookworm)"} 1
# HELP container_memory_cache Number of bytes of page cache memory.
# TYPE container_memory_cache gauge
container_memory_cache{id="/"} 2.74259968e+09 1795906561290
container_memory_cache{id="/system"} 2.731687936e+09 1795906560774
container_memory_cache{id="/system/a"} 1.509482496e+09 1795906560971
# HELP container_memory_rss Size of RSS in bytes.
# TYPE container_memory_rss gauge
container_memory_rss{id="/"} 1.231798272e+09 1795906561290
container_memory_rss{id="/system"} 1.220800512e+09 1795906560774
container_memory_rss{id="/system/a"} 7.87791872e+08 1795906560971
# HELP container_memory_usage_bytes Current memory usage in bytes, including all memory regardless of when it was accessed
# TYPE container_memory_usage_bytes gauge
container_memory_usage_bytes{id="/"} 3.974160384e+09 1795906561290
container_memory_usage_bytes{id="/system"} 4.429611008e+09 1795906560774
container_memory_usage_bytes{id="/system/a"} 2.622083072e+09 1795906560971
# HELP container_memory_working_set_bytes Current working set in bytes.
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{id="/"} 2.51070464e+09 1795906561290
container_memory_working_set_bytes{id="/system"} 2.966368256e+09 1795906560774
container_memory_working_set_bytes{id="/system/a"} 2.005495808e+09 1795906560971
# HELP container_scrape_error 1 if there was an error while getting container metrics, 0 otherwise
# TYPE container_scrape_error gauge
container_scrape_error 0
# HELP container_sockets Number of open sockets for the container.
# TYPE container_sockets gauge
container_sockets{id="/"} 40362 1795906561290
container_sockets{id="/system"} 0 1795906560774
container_sockets{id="/system/a"} 0 1795906560971
# HELP container_spec_memory_limit_bytes Memory limit for the container.
# TYPE container_spec_memory_limit_bytes gauge
container_spec_memory_limit_bytes{id="/"} 2.5276510208e+10
container_spec_memory_limit_bytes{id="/system"} 0
container_spec_memory_limit_bytes{id="/system/a"} 0
"""
