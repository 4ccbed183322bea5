"""`stoker admin`: commands for a team's administrator, one file each."""
