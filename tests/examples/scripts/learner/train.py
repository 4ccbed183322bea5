"""After the shape of fastai: a Learner in a file of its own decides where models go."""

from learner import DataBunch, Learner, SaveModel

data = DataBunch.from_random(64)
learn = Learner(data, path="work", callbacks=[SaveModel(every="epoch", name="stage-1")])
if learn.has("stage-1"):
    learn.load("stage-1")
learn.fit(40, lr=0.05)
learn.export("export.pkl")
