"""One attempt on one node: each phase is an object, in order of execution. No process is started here."""
