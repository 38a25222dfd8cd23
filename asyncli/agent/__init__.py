"""The agent: what the collector reads, read on the server's own host and handed to a soak elsewhere. Server and client of it."""
