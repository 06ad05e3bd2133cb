"""Which gangs may run, and in which order: queues, priorities, shares."""
