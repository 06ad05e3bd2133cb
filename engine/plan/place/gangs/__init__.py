"""Gangs whose nodes are chosen together: blocks, trees, switches, returning jobs."""
