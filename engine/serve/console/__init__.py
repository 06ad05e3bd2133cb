"""The console: one document of the present state, its changes, its history, and questions about both; read-only."""
