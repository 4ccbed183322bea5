"""XGBoost with its checkpoint callback, which continues from the newest model in its folder."""

import glob
import os
import time

import numpy as np
import xgboost as xgb

check_dir = "xgb_models"
rounds = 120
X = np.random.default_rng(0).normal(size=(200, 4))
dtrain = xgb.DMatrix(X, label=X.sum(1) > 0)
os.makedirs(check_dir, exist_ok=True)
saved = sorted(glob.glob(os.path.join(check_dir, "model_*.ubj")), key=os.path.getmtime)
if saved:
    rounds -= xgb.Booster(model_file=saved[-1]).num_boosted_rounds()


class Pace(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        time.sleep(0.15)
        print(f"{model.num_boosted_rounds()} rounds are done", flush=True)
        return False


booster = xgb.train(
    {"objective": "binary:logistic", "nthread": 1},
    dtrain,
    rounds,
    evals=[(dtrain, "train")],
    callbacks=[Pace(), xgb.callback.TrainingCheckPoint(directory=check_dir, interval=2, name="model")],
    xgb_model=saved[-1] if saved else None,
)
booster.save_model("model.json")
