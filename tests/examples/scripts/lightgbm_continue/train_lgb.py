"""LightGBM: a text file after every few rounds, and `init_model` to continue from it."""

import os
import time

import lightgbm as lgb
import numpy as np

MODEL = "lgb_models/model.txt"
ROUNDS, EVERY = 120, 2
X = np.random.default_rng(0).normal(size=(400, 6))
y = (X[:, 0] + X[:, 1] > 0).astype(int)
os.makedirs("lgb_models", exist_ok=True)
done = lgb.Booster(model_file=MODEL).current_iteration() if os.path.exists(MODEL) else 0


def keep(env):
    time.sleep(0.15)
    if (env.iteration + 1) % EVERY == 0:
        env.model.save_model(MODEL + ".new", num_iteration=-1)
        os.replace(MODEL + ".new", MODEL)
        print(f"[{env.iteration + 1}]\ttraining's binary_logloss: {env.evaluation_result_list[0][2]:.6f}", flush=True)


train = lgb.Dataset(X, y)
params = {"objective": "binary", "metric": "binary_logloss", "verbose": -1, "num_leaves": 7, "num_threads": 1}
booster = lgb.train(
    params,
    train,
    num_boost_round=ROUNDS - done,
    valid_sets=[train],
    valid_names=["training"],
    init_model=MODEL if done else None,
    callbacks=[keep],
)
booster.save_model("lgb_models/final.txt")
