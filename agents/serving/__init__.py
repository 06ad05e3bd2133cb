"""Small HTTP servers of the programs on nodes: metrics and health probes, with limits and TLS."""
