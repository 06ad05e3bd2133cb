"""Hosts without Kubernetes: stops the containers on a faulty chip, resets it, starts them again (Container Manager)."""
