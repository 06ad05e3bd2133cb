"""Which ranks and which parallel groups of a training job are slow, from the times of its steps. Pure."""
