"""Who is next where there is not room for all: the order, what fits, and when the rest will likely start."""
