"""What all object stores share: segments for appends, HTTP, errors, and obstore for server and client."""
