"""What keeps it true: the API, the database and the reconciler. Decisions are the engine's."""
