"""One generator on many hosts, by Dask: it lists the hosts, carries our calls and reports lost
workers. asyncli starts its own processes there. Only :mod:`asyncli.cluster.link` and
:mod:`asyncli.cluster.actor` import ``distributed`` (the extra ``dask``).
"""
