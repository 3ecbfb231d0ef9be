"""Experiments between real processes: the programs of server, node and operator."""
