"""NodeD's functions on a real node: hardware alarms through IPMI, storage clients, super pod, pings, snapshots."""
