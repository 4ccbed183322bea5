"""`stoker admin`: what an administrator does for a team. Each command has a file of its own."""
