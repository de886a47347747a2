"""From files to what they declare: each format becomes `Start`s, and those become declared servers."""
