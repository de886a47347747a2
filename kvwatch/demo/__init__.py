"""A built-in fleet to watch: simulated devices and engines behind real processes and real HTTP.

Nothing in here knows a kvwatch metric: the engines run a block allocator and a request queue, and kvwatch
reads their pages like any server's.
"""
