"""Which pods belong to which gang, who owns them, and the status of their jobs."""
