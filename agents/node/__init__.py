"""The daemon of one node: report, take orders, execute, journal."""
