"""Faults on real processes: engine, agents, Redis and Git against the sandbox's API server or a real kube-apiserver.

``cluster.py`` starts everything, each process behind ``proxy.py`` with a clock, a disk and, where root allows, a
network of its own; ``faults.py`` breaks it; ``witness.py`` sees every binding, order and reset; ``rounds.py`` plays
seeded rounds and waits after each until nothing is missing. ``python -m tests.chaos`` (``make chaos``) runs many.
"""
