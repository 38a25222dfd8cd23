"""What all parts share: plans and their values, records and metrics, errors, units. It imports
nothing else of asyncli.
"""
