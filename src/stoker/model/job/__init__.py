"""The job: what a person writes."""
