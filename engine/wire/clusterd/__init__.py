"""The gRPC messages of ClusterD and TaskD: `.proto` files and the code made from them (`make proto`).

Names, numbers and enums are MindCluster's (component/clusterd/pkg/interface/grpc, component/taskd): a client built
from its descriptors talks to Belay unchanged. `*_pb2.py`, `*_pb2.pyi`, `*_pb2_grpc.py` are generated, never edited.
"""
