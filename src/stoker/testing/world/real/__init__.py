"""The server itself in the world: reconciler, performer, ledger and database, on a virtual clock and event loop.

Only agents, scripts and the cloud are models. Nothing here decides anything.
"""
