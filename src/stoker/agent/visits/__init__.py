"""Access for people: commands, shells and terminals. Nothing of the script's own."""
