"""What every program on a node uses: the Kubernetes client, clocks, log lines, files of the host, child processes."""
