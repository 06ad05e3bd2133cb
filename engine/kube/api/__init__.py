"""Generated code: what of the Kubernetes API is read in protobuf."""
