"""HTTP: the webhook, metrics, probes and a status page."""
