"""Requests to Azure and its responses: recorded without secrets, and replayed."""
