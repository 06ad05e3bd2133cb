"""The driver's own C interface, `libdcmi.so`: layouts, prototypes, calls, and the process that loads it."""
