"""What training code imports: no dependency, and a framework only if the script has imported it."""
