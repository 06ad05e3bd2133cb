"""The workload controllers of kube-controller-manager, and the defaults that an API server fills in.

Each controller is a pure function from objects to the writes that bring them closer to their spec. The sandbox feeds
them from list+watch and performs the writes; a simulated world performs them on its objects.
"""
