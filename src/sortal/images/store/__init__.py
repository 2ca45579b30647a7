"""The pixel store: every image decoded and resized once, then memory-mapped."""
