"""Folders of files to and from a store: snapshots, outputs, bundles."""
