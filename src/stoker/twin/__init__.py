"""A cloud in a box: Azure's wire protocols over machines of this computer. Nothing here is imported by the server."""
