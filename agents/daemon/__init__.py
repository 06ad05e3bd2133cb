"""The agent as a process: what it is put together from, its options, and fleets of simulated nodes."""
