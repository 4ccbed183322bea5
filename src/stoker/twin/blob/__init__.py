"""The twin's Blob service: an Azurite of its own."""
