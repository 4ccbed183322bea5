"""Requests to Azure and its answers as they went over the wire: written down without secrets, and played back."""
