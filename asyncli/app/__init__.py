"""The composition root of each job: soak, bench, capacity, check, compare, and a run's results.

The command line (asyncli/cli) and the Python API (asyncli/api.py) call it. Nothing here installs a
signal handler or prints.
"""
