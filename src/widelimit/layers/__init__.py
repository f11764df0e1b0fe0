"""Layers: each with its finite network and its infinite-width rule side by side."""
