"""What happens in the twin as time passes: power, notices, evictions, outages."""
