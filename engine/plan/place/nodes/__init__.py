"""Which nodes fit a pod, by Kubernetes' predicates and free chips, and how good each is."""
