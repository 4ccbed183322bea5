"""A study in a database beside the script."""

import optuna


def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    return (x - 2) ** 2


if __name__ == "__main__":
    study = optuna.create_study(storage="sqlite:///study.db", study_name="quadratic", load_if_exists=True)
    study.optimize(objective, n_trials=20)
    print("best value:", study.best_value)
