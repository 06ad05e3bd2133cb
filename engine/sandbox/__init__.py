"""The embedded control plane: a small Kubernetes API server and simulated nodes, for a laptop and for tests.

Nothing in Belay knows that it talks to the sandbox: the one code path to a cluster is the Kubernetes API, there is no
second local backend. Only the command line and the tests import this room.
"""
