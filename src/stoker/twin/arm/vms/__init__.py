"""Virtual machines, their disks and extensions, and scale sets."""
