"""The tenant API."""
