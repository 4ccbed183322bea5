class Config:
    defaults = {"checkpoint_dir": "saved", "epochs": 60, "learning_rate": 0.01, "topk": [10]}

    def __init__(self, model, dataset):
        self.final = dict(self.defaults, model=model, dataset=dataset)

    def __getitem__(self, item):
        return self.final.get(item)
