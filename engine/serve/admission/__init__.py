"""The admission webhook: what Belay's own accounts may write, by name and by node, where RBAC knows verbs only."""
