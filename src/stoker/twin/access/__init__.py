"""Who may do what in the twin: identities, tokens, roles and their conditions."""
