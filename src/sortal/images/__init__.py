"""Image files and their labels: reading, decoding, checking, storing pixels."""
