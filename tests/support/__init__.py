"""What tests share: small runs, folders, stores and records, and ways to disturb them."""
