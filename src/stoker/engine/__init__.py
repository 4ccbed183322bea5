"""What should happen: pure functions from facts and sightings to new facts and actions. No I/O, no clock."""
