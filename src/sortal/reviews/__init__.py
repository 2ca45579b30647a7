"""What people decide about a run."""
