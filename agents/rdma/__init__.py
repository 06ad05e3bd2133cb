"""RDMA cards of a node as a shared resource, and their faults."""
