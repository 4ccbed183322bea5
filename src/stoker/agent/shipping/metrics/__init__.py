"""The metrics of a script, from everything it prints and writes. Nothing here changes what a script does."""
