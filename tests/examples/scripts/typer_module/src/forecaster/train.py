import csv
import os
import pickle
import time
from pathlib import Path
from typing import Optional

import typer

from forecaster.model import Model

app = typer.Typer()


@app.command()
def main(
    run_dir: Path = typer.Option(Path("runs/latest"), help="where everything goes"),
    epochs: int = 60,
    restart: Optional[Path] = typer.Option(None, help="checkpoint to restart from"),
):
    run_dir.mkdir(parents=True, exist_ok=True)
    model, first = Model(), 0
    if restart is not None:
        with open(restart, "rb") as f:
            model, first = pickle.load(f)
        typer.echo(f"restarted from {restart} at {first}")
    with open(run_dir / "log.csv", "a", newline="") as f:
        writer = csv.writer(f)
        if first == 0:
            writer.writerow(["epoch", "mae"])
        for epoch in range(first, epochs):
            mae = model.fit()
            time.sleep(0.3)
            writer.writerow([epoch, mae])
            f.flush()
            print(f"[{epoch + 1:03d}/{epochs:03d}] mae {mae:.3f}", flush=True)
            with open(run_dir / f"epoch{epoch + 1:03d}.pkl", "wb") as out:
                pickle.dump((model, epoch + 1), out)


if __name__ == "__main__":
    app()
