"""The static cost model: what an engine allocates for a token, a block, a request."""
