"""What kube-controller-manager does in a real cluster, for a cluster that has none: workloads, node life cycle,
clean-up.

Each controller is a pure function from objects to the writes that bring them closer to their spec; `manager.py` feeds
it from list+watch and performs the writes. Only the Kubernetes API is spoken, so the same controllers serve the
sandbox's API server and a bare kube-apiserver.
"""
