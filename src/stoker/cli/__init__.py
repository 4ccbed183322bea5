"""How people ask: one file per command. Nothing slow may be imported here at the top."""
