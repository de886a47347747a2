"""What kvwatch keeps of its servers in a file of its own: a row a minute, written beside the polls."""
