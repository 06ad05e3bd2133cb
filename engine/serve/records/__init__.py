"""History that stays: what happened in the cluster, kept in a database beyond what Kubernetes itself keeps."""
