"""What every program does with files of this computer: lock them, and write them whole. Standard library only; nothing
here knows what Stoker is."""
