"""Parts of chips: vNPUs cut on demand and soft shares."""
