"""XGBoost with its checkpoint callback, which continues from the newest model in its folder."""

import glob
import os

import numpy as np
import xgboost as xgb

check_dir = "xgb_models"
rounds = 20
X = np.random.default_rng(0).normal(size=(200, 4))
dtrain = xgb.DMatrix(X, label=X.sum(1) > 0)
os.makedirs(check_dir, exist_ok=True)
saved = sorted(glob.glob(os.path.join(check_dir, "model_*.ubj")), key=os.path.getmtime)
keep = xgb.callback.TrainingCheckPoint(directory=check_dir, interval=2, name="model")
booster = xgb.train({"objective": "binary:logistic"}, dtrain, rounds, callbacks=[keep], xgb_model=saved[-1] if saved else None)
booster.save_model("model.json")
