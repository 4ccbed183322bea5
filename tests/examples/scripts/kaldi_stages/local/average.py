import glob, sys
import torch
paths = sorted(glob.glob(sys.argv[1] + "/*epoch.pth"))[-3:]
states = [torch.load(p) for p in paths]
torch.save({k: sum(s[k] for s in states) / len(states) for k in states[0]}, sys.argv[1] + "/valid.acc.ave.pth")
print("averaged", len(paths))
