"""Measures of what a trained model can solve."""
