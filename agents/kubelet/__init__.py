"""The device plugin: what kubelet is offered, what containers are given, and who holds what."""
