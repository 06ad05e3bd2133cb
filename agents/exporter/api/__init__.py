"""Messages of container runtimes, of which the exporter reads the part that names containers and their devices."""
