"""The start page: everything from a folder of images to an export, without a terminal."""
