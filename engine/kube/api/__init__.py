"""Generated code: the parts of the Kubernetes API that are read in protobuf."""
