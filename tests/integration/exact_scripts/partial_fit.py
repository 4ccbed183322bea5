"""After the shape of scikit-learn's `partial_fit` loops, with generators of several kinds, saved by `SAVE`."""

import json
import os
import pickle
import random
import time

import numpy as np

SAVE = os.environ["SAVE"]


class Perceptron:
    def __init__(self):
        self.coef_ = np.zeros(4)

    def partial_fit(self, x, y):
        for i in np.random.permutation(len(x)):
            self.coef_ += 0.1 * (y[i] - np.tanh(x[i] @ self.coef_) + 0.1 * np.random.randn()) * x[i]


def load(clf):
    if SAVE == "pickle" and os.path.exists("model.pkl"):
        with open("model.pkl", "rb") as file:
            return pickle.load(file)
    if SAVE == "numpy" and os.path.exists("model.npz"):
        held = np.load("model.npz")
        clf.coef_ = held["coef"]
        return clf, int(held["epoch"])
    if SAVE == "joblib" and os.path.exists("model.joblib"):
        return joblib.load("model.joblib")
    return clf, 0


def save(clf, epoch):
    if SAVE == "pickle":
        with open("model.part", "wb") as file:
            pickle.dump((clf, epoch), file)
        os.replace("model.part", "model.pkl")
    elif SAVE == "numpy":
        np.savez("part", coef=clf.coef_, epoch=epoch)
        os.rename("part.npz", "model.npz")
    else:
        joblib.dump((clf, epoch), "model.part")
        os.replace("model.part", "model.joblib")


def main():
    np.random.seed(0)
    chance, order, old = np.random.default_rng(3), random.Random(4), np.random.RandomState(5)
    x = np.random.default_rng(1).normal(size=(50, 4))
    y = np.sign(x.sum(1))
    clf, first = load(Perceptron())
    for epoch in range(first, 25):
        rows = chance.permutation(50)[: order.randrange(20, 40)]
        clf.partial_fit(x[rows] + 0.1 * old.normal(size=(len(rows), 4)), y[rows])
        save(clf, epoch + 1)
        with open("steps.log", "a") as log:
            log.write(f"{epoch} {[one.hex() for one in clf.coef_.tolist()]}\n")
        time.sleep(0.01)
    with open("final.json", "w") as file:
        json.dump(
            {"coef": clf.coef_.tolist(), "next": [chance.random(), order.random(), old.rand(), np.random.rand()]}, file
        )


if SAVE == "joblib":
    import joblib
main()
