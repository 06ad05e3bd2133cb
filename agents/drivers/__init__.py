"""Access to chips: one protocol, with one implementation per access path."""
