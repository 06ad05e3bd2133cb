"""One snapshot, ``Observed``, from Kubernetes objects and node reports."""
