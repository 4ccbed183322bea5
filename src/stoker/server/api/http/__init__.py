"""What every request and every answer goes through: the token, bodies read through types, one shape for errors."""
