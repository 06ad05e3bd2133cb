"""What Prometheus and Telegraf read of a node's NPUs: MindCluster's 199 metrics under their names."""
