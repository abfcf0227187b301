"""Calls to the outside: targets, connections, requests."""
