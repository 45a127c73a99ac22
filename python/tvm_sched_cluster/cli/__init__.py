"""The commands of clusters and of serving."""
