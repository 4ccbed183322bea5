"""What is deployed for one node: its template, image, role and first boot."""
