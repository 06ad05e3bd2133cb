"""What runs on nodes: the agent, its drivers, and what containers need. Imports engine.wire and engine.model only."""
