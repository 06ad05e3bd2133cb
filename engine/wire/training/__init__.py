"""Messages of `belay train` to `belay server` (package `belay.training.v1`), Belay's own service beside ClusterD's."""
