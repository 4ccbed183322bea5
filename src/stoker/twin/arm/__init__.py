"""Azure Resource Manager: one file per noun; each request is a pure function from a cloud to the next and a
response."""
