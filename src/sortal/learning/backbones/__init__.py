"""Backbones: networks that turn images into features."""
