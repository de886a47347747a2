"""`kvwatch top`: a live terminal view of a daemon's snapshots, or of its own polls.

`snapshot_view` turns a snapshot's document into what is shown, `screen` lays it out, `keys` moves in it: all
three are pure. `terminal` draws and reads keys, `live` runs the loop, `origins` fetches or polls.
"""
