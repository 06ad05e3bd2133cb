"""Kubelet's sockets: services and messages, made by `make proto` from the .proto files beside this one."""
