"""Azure Blob."""
