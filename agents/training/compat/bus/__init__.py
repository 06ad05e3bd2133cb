"""TaskNet: the message bus between manager, proxies, agents and workers of one job (TaskD of MindCluster)."""
