"""What connections speak: a codec for each protocol, without input or output. settings.py says what
a plan sets for each.
"""
