"""Commands that change or delete runs and their files."""
