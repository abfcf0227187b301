"""Benchmarks, each beside what a user would pick instead."""
