"""Representation learning: images to features."""
