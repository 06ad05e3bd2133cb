"""The conversation with ClusterD's recovery service: what it orders, and what a job answers."""
