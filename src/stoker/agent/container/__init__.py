"""The container that a script runs in: its image, pulled, built or restored, and how the ranks get in."""
