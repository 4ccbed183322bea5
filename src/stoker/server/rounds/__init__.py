"""The reconciler's rounds: look, decide, save, act."""
