"""A study in a database beside the script, which counts the trials that are done."""

import time

import joblib
import optuna

TRIALS = 80


def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    time.sleep(0.2)
    return (x - 2) ** 2


if __name__ == "__main__":
    study = optuna.create_study(storage="sqlite:///study.db", study_name="quadratic", load_if_exists=True)
    study.optimize(objective, n_trials=TRIALS - len(study.trials))
    print("best value:", study.best_value)
    joblib.dump(study.best_params, "best_params.pkl")
