"""Datasets of problems whose answers a program can check."""
