"""Which run is next where there is not room for all: order, placement, clusters, and runs that make room. Pure."""
