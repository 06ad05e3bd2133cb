"""How jobs that faults hit are recovered, and what that costs."""
