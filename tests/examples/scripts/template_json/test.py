import torch, sys
print(torch.load(sys.argv[1])["epoch"])
