class Model:
    def __init__(self):
        self.value = 10.0

    def fit(self):
        self.value *= 0.97
        return self.value
