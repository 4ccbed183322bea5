"""After the shape of cookiecutter-data-science: both of its arguments have no name, and a Makefile gives them."""

import logging
import time
from pathlib import Path

import click
import joblib
import pandas as pd
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import f1_score, roc_auc_score


@click.command()
@click.argument("input_filepath", type=click.Path(exists=True))
@click.argument("model_filepath", type=click.Path())
@click.option("--epochs", default=60, show_default=True)
def main(input_filepath, model_filepath, epochs):
    """Trains the model on the processed data."""
    logger = logging.getLogger(__name__)
    df = pd.read_csv(input_filepath)
    X, y = df.drop(columns="label").values, df["label"].values
    path = Path(model_filepath)
    if path.exists():
        state = joblib.load(path)
        logger.info("continuing from %s", path)
    else:
        state = {"clf": SGDClassifier(loss="log_loss", random_state=0), "epoch": 0}
    while state["epoch"] < epochs:
        state["clf"].partial_fit(X, y, classes=[0, 1])
        state["epoch"] += 1
        time.sleep(0.3)
        prob = state["clf"].predict_proba(X)[:, 1]
        logger.info("epoch %d | auc %.4f | f1 %.4f", state["epoch"], roc_auc_score(y, prob), f1_score(y, prob > 0.5))
        joblib.dump(state, path)


if __name__ == "__main__":
    log_fmt = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
    logging.basicConfig(level=logging.INFO, format=log_fmt)
    main()
