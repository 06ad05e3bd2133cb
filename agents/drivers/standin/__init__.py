"""A compiled stand-in for `libdcmi.so`: for tests through the real interface, and for people without the hardware."""
