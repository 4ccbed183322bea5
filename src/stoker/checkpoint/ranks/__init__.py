"""Trainings of several ranks: one step for all, and gradients added in one order."""
