"""Ways to reach chips: one protocol, one implementation per way."""
