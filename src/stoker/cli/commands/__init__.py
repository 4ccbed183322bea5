"""The commands, in the sections of `stoker --help`: what each asks the client, and nothing that the client could do."""
