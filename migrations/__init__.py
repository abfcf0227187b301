"""Numbered migrations of a shard and their application."""
