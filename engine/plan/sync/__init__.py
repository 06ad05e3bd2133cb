"""Live objects as Git declares them: create, patch, prune."""
