"""Links between prefill and decode clusters."""
