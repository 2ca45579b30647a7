"""Features to clusters."""
