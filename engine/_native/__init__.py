"""Compiled leaf modules: they compute, and import nothing of ours."""
