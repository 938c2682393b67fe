"""Searches for each loss's best settings by validation score; `search` is where to start reading."""
