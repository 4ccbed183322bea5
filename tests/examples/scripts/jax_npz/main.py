"""Linear regression from scratch in JAX; usage: python main.py [--exp NAME]"""
import dataclasses
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass
class Config:
    exp: str = "debug"
    root: str = "experiments"
    steps: int = 300
    save_every: int = 5
    lr: float = 0.05

    @property
    def dir(self) -> pathlib.Path:
        return pathlib.Path(self.root) / self.exp


def save(path, params, step, key):
    tmp = path.with_suffix(".tmp.npz")
    np.savez(tmp, step=step, key=np.asarray(key), **{k: np.asarray(v) for k, v in params.items()})
    tmp.rename(path)


def restore(path):
    with np.load(path) as z:
        return {k: jnp.asarray(z[k]) for k in ("w", "b")}, int(z["step"]), jnp.asarray(z["key"])


def main(argv):
    cfg = Config(exp=argv[argv.index("--exp") + 1]) if "--exp" in argv else Config()
    cfg.dir.mkdir(parents=True, exist_ok=True)
    path = cfg.dir / "state.npz"
    key = jax.random.PRNGKey(0)
    params = {"w": jnp.zeros(4), "b": jnp.zeros(())}
    start = 0
    if path.exists():
        params, start, key = restore(path)
        print(f"restored {path} at step {start}")

    def loss_fn(p, x, y):
        return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)

    grad = jax.jit(jax.value_and_grad(loss_fn))
    for step in range(start, cfg.steps):
        key, sub = jax.random.split(key)
        x = jax.random.normal(sub, (32, 4))
        y = x @ jnp.arange(4.0) + 1.0
        loss, g = grad(params, x, y)
        params = jax.tree_util.tree_map(lambda p, q: p - cfg.lr * q, params, g)
        time.sleep(0.1)
        if (step + 1) % cfg.save_every == 0:
            print(f"step={step + 1:5d} loss={float(loss):.5f}", flush=True)
            save(path, params, step + 1, key)
    np.savez(cfg.dir / "final.npz", **{k: np.asarray(v) for k, v in params.items()})


if __name__ == "__main__":
    main(sys.argv)
