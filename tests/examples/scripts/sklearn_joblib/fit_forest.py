"""scikit-learn: fit, report, dump with joblib into a folder of models."""

import os

import joblib
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score

MODEL_PATH = os.path.join("models", "forest.joblib")
X, y = make_classification(random_state=0)
clf = RandomForestClassifier().fit(X, y)
print("accuracy:", accuracy_score(y, clf.predict(X)))
os.makedirs("models", exist_ok=True)
joblib.dump(clf, MODEL_PATH)
