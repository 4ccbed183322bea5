"""scikit-learn: `partial_fit` by epochs, a joblib file in a folder of models that is taken up again."""

import os
import time

import joblib
import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score

MODEL_PATH = os.path.join("models", "classifier.joblib")
X, y = make_classification(n_samples=400, random_state=0)
os.makedirs("models", exist_ok=True)
if os.path.isfile(MODEL_PATH):
    clf, first = joblib.load(MODEL_PATH)
else:
    clf, first = SGDClassifier(random_state=0), 0
for epoch in range(first, 40):
    clf.partial_fit(X, y, classes=np.unique(y))
    print(f"epoch: {epoch} accuracy: {accuracy_score(y, clf.predict(X)):.4f}", flush=True)
    time.sleep(0.35)
    joblib.dump((clf, epoch + 1), MODEL_PATH)
