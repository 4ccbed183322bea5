"""The server: the API, the database and the reconciler. The engine makes the decisions."""
