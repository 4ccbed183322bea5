"""After the shape of Flax's examples: absl flags, a required `--workdir`, numbered checkpoints of JAX arrays."""

import glob
import os
import pickle
import time

import jax
import jax.numpy as jnp
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", None, "Directory to store model data.")
flags.DEFINE_integer("num_steps", 120, "Number of training steps.")
flags.DEFINE_integer("checkpoint_every", 2, "Steps between checkpoints.")


def loss_fn(params, x):
    return jnp.mean((x @ params["w"] + params["b"] - x.sum(1)) ** 2)


@jax.jit
def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


def restore_checkpoint(workdir, params):
    found = sorted(glob.glob(os.path.join(workdir, "checkpoint_*")))
    if not found:
        return params, 0
    with open(found[-1], "rb") as f:
        return pickle.load(f)


def save_checkpoint(workdir, params, step):
    path = os.path.join(workdir, f"checkpoint_{step:06d}")
    with open(path + ".tmp", "wb") as f:
        pickle.dump((jax.device_get(params), step), f)
    os.rename(path + ".tmp", path)


def train_and_evaluate(workdir):
    os.makedirs(workdir, exist_ok=True)
    params = {"w": jnp.zeros(8), "b": jnp.zeros(())}
    params, first = restore_checkpoint(workdir, params)
    for step in range(first + 1, FLAGS.num_steps + 1):
        x = jax.random.normal(jax.random.PRNGKey(step), (32, 8))
        params, loss = train_step(params, x)
        time.sleep(0.15)
        if step % FLAGS.checkpoint_every == 0:
            logging.info("train epoch: %d, loss: %.4f", step, float(loss))
            save_checkpoint(workdir, params, step)


def main(argv):
    logging.set_verbosity(logging.INFO)
    train_and_evaluate(FLAGS.workdir)


if __name__ == "__main__":
    flags.mark_flags_as_required(["workdir"])
    app.run(main)
