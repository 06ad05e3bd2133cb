"""Which node and which chips a pod gets."""
