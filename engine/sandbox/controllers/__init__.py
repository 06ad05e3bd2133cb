"""The controllers of kube-controller-manager, for a cluster without one; those of workloads are `engine/workloads/`.

Each controller is a pure function from objects to the writes that bring them closer to their spec; `manager.py` feeds
it from list+watch and performs the writes. They use only the Kubernetes API, so the same controllers serve the
sandbox's API server and a bare kube-apiserver.
"""
