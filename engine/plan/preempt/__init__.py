"""Room for gangs that do not fit: preemption, reservations, moves, repartitions."""
