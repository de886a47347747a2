"""What a server was told when it was started: its command line, configuration file and environment."""
