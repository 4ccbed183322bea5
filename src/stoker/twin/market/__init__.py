"""What the twin offers: regions, sizes, images, prices, quota, and its own bill."""
