"""A corpus."""


class Dictionary:
    def __init__(self):
        self.word2idx = {}
