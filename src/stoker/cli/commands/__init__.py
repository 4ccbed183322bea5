"""The commands, in the sections of `stoker --help`. What the client can do is done there, not here."""
