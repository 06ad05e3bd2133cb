"""The manager of a job, in the pod of rank 0: it decides with ClusterD how the processes recover."""
