"""What all object stores share: segments for appends, HTTP, refusals, and obstore for server and client."""
