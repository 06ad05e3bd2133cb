"""Kubelet's interfaces for drivers of dynamic resource allocation; made by ``make proto``."""
