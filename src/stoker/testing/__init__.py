"""Fakes and contract suites that plug-in authors use too. Never imported by Stoker itself."""
