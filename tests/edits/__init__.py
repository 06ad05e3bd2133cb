"""Every small mistake in every sample, pushed to a running world: what happens must be what the text says."""
