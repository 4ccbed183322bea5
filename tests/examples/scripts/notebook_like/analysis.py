# %% [markdown]
# # Two moons

# %%
import pickle

import numpy as np

# %%
rng = np.random.default_rng(0)
X = rng.normal(size=(100, 2))
y = (X[:, 0] > 0).astype(int)


# %%
class Perceptron:
    def fit(self, X, y):
        self.w = np.linalg.lstsq(X, y, rcond=None)[0]
        return self


# %%
model = Perceptron().fit(X, y)
print("accuracy", ((X @ model.w > 0.5) == y).mean())

# %%
with open("perceptron.pkl", "wb") as f:
    pickle.dump(model, f)
