"""The embedded control plane: a small Kubernetes API server and simulated nodes, for a laptop and for tests.

The other rooms reach the sandbox through the Kubernetes API, as they reach any cluster; there is no second
backend. Only the command line and the tests import this room.
"""
