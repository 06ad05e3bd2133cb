"""The nouns the engine computes with: frozen, pure, without clock, client or logging."""
