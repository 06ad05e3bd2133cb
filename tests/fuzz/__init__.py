"""Fuzzing of every parser: mutated inputs, guided by the lines that they reach (`make fuzz`)."""
