"""Jobs become pods, services, PodGroups and rank tables, and get their status."""
