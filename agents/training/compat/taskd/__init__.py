"""TaskD inside a pod: the agent of torchrun or msrun, the pod's proxy, a training process on the bus."""
