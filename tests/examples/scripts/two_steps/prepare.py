import argparse, os, random

p = argparse.ArgumentParser()
p.add_argument("--out", default="data/processed")
a = p.parse_args()
os.makedirs(a.out, exist_ok=True)
open(os.path.join(a.out, "train.csv"), "w").write("\n".join(f"{i},{2 * i + 1}" for i in range(50)))
print("prepared 50 rows")
