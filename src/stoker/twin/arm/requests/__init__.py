"""How a request to Resource Manager is read, checked and dispatched."""
