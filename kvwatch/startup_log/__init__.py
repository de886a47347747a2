"""What the log of an engine's start says of memory: read, explained, compared with an earlier start."""
