"""The device plugin: devices offered to kubelet, devices given to containers, and which pod holds which chip."""
