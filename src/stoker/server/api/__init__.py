"""The HTTP API: one file per noun. It reads, it submits wishes, and it never decides."""
