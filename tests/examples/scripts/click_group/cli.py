from pathlib import Path
import time

import click
import joblib
import numpy as np
from sklearn.linear_model import SGDClassifier


@click.group()
def cli():
    pass


@cli.command()
@click.option("--out", "out", type=click.Path(path_type=Path), default=Path("artifacts"), show_default=True)
@click.option("--batches", default=240)
@click.option("--every", default=5, help="checkpoint every N batches")
@click.option("--resume/--no-resume", default=False, help="continue from the latest checkpoint")
def train(out, batches, every, resume):
    out.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    clf, start = SGDClassifier(loss="log_loss"), 0
    ckpt = out / "model.joblib"
    if resume and ckpt.exists():
        clf, start = joblib.load(ckpt)
        click.echo(f"resuming from batch {start}")
    for i in range(start, batches):
        x = rng.normal(size=(64, 10))
        y = (x.sum(1) > 0).astype(int)
        clf.partial_fit(x, y, classes=[0, 1])
        time.sleep(0.12)
        if (i + 1) % every == 0:
            joblib.dump((clf, i + 1), ckpt)
            click.echo(f"batch {i + 1}/{batches} acc={clf.score(x, y):.3f}")


@cli.command()
@click.argument("model", type=click.Path(exists=True))
def evaluate(model):
    clf, _ = joblib.load(model)
    click.echo(clf)


if __name__ == "__main__":
    cli()
