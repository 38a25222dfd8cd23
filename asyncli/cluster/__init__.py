"""One generator on many hosts, by Dask: it knows the hosts, carries the calls and tells who is gone. We start processes there.

The only place that imports ``distributed`` (the extra ``dask``), and only in :mod:`asyncli.cluster.link` and
:mod:`asyncli.cluster.actor`.
"""
