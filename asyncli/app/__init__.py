"""What asyncli does, each job put together in one place: soak, bench, capacity, check, compare, and a run's results.

The command line (asyncli/cli) and Python (asyncli/api.py) are two doors to it. Nothing here installs a signal handler or prints.
"""
