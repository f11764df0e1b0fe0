"""Limit laws of networks with finitely many heads, and finite-width simulation."""
