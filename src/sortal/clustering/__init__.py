"""Clustering of features, and estimation of the number of clusters."""
