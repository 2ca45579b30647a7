"""The review of a run, with what clustering and other models say."""
