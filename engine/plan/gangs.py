"""Groups live pods into gangs by their owner (filled by the placement work)."""
