"""Measurements, each printed by one command."""
