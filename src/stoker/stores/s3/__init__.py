"""S3, of Amazon and of others."""
