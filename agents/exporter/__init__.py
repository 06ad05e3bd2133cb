"""The metrics of a node's NPUs for Prometheus and Telegraf: MindCluster's 199 metrics under their names."""
