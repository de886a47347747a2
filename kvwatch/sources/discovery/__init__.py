"""Finds this machine's inference servers: by command line, and from GPU processes to a port that answers."""
