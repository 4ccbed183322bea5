"""A cloud in a box: Azure's wire API on loopback, over machines made of namespaces and processes."""
