"""Folders of this computer as stores."""
