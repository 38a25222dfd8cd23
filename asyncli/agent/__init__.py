"""The agent: runs the collector on the server's host and serves its samples to a soak on another
host. Server and client.
"""
