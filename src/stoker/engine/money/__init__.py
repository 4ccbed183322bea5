"""What runs cost and may cost."""
