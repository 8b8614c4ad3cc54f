"""Reward functions that verify an answer exactly."""
