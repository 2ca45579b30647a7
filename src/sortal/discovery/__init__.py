"""Discovery: a folder of images becomes a run, and a run takes in new images."""
