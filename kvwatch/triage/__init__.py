"""Why capacity changed: two moments of a server compared, factor by factor, with the evidence beside."""
