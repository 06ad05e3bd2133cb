"""What runs on nodes: the agent, its drivers, and what containers need. Imports belay.engine.wire and
belay.engine.model only."""
