"""MindIO TFT for scripts: threads, connections, environment and functions around the pure machines of `tft`."""
