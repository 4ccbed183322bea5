"""How a request to Resource Manager is parsed, checked and dispatched."""
