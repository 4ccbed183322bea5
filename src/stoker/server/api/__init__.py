"""The HTTP API: one file per noun. It reads, it records wishes, and it never decides."""
