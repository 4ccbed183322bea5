"""Commands that change or remove runs and what they left."""
