"""Claims of dynamic resource allocation: devices of nodes, what claims ask for, who holds what, which devices fit."""
