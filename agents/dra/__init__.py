"""Dynamic resource allocation (DRA) on a node: chips published as ResourceSlices, claims prepared for kubelet."""
