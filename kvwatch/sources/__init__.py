"""Readers of foreign worlds: NVML, /proc, HTTP, model files."""
