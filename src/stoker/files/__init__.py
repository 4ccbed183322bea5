"""File operations that every program uses: locks and atomic writes. Standard library only; knows nothing of
Stoker."""
