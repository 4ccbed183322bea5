import os, time, pickle, datetime
import numpy as np

EXP = "experiments/exp1"
os.makedirs(EXP, exist_ok=True)
os.chdir(EXP)
state = {"w": np.zeros(3), "it": 0}
if os.path.exists("state.pickle"):
    with open("state.pickle", "rb") as f:
        state = pickle.load(f)
    print("continuing at", state["it"], flush=True)
while state["it"] < 50:
    state["it"] += 1
    state["w"] += 0.1
    time.sleep(0.4)
    print("it %d loss %.4f" % (state["it"], 1 / state["it"]), flush=True)
    with open("state.pickle", "wb") as f:
        pickle.dump(state, f)
np.savetxt("weights.txt", state["w"])
