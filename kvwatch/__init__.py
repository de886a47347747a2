"""kvwatch: a live GPU-memory and KV-cache exporter for LLM inference servers."""

__version__ = "0.1.0"
