"""vNPU layouts: declared against reported partitions."""
