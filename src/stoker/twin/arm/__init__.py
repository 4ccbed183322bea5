"""Azure Resource Manager: one file per noun, each request a pure function from a cloud to the next and an answer."""
