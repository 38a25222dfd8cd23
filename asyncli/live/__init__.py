"""A soak looked at while it lasts: a page for browsers and metrics for Prometheus, both made from
the records of its run file. Start at :mod:`asyncli.live.feed`.
"""
