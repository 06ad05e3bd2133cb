"""A compiled stand-in for `libdcmi.so`: for tests through the real interface, and for development without hardware."""
