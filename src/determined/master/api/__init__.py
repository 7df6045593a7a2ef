"""The master's HTTP interface: one file for each noun. A route says who may call it, or the master does not start."""
