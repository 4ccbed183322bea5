import os, sys, time
import torch


class MetricLogger:
    def __init__(self, delimiter="\t"):
        self.delimiter, self.values = delimiter, {}

    def update(self, **kw): self.values.update(kw)

    def __str__(self): return self.delimiter.join("{}: {:.6f} ({:.6f})".format(k, v, v) for k, v in self.values.items())

    def log_every(self, iterable, print_freq, header=None):
        for i, obj in enumerate(iterable):
            yield obj
            print(self.delimiter.join([header, '[{}/{}]'.format(i, len(iterable)), 'eta: 0:00:01', str(self), 'time: 0.15', 'data: 0.0']), flush=True)


def restart_from_checkpoint(ckp_path, run_variables=None, **kwargs):
    if not os.path.isfile(ckp_path):
        return
    print("Found checkpoint at {}".format(ckp_path))
    checkpoint = torch.load(ckp_path, map_location="cpu", weights_only=False)
    for key, value in kwargs.items():
        if key in checkpoint and value is not None:
            value.load_state_dict(checkpoint[key])
            print("=> loaded '{}' from checkpoint: '{}'".format(key, ckp_path))
    if run_variables is not None:
        for var_name in run_variables:
            if var_name in checkpoint:
                run_variables[var_name] = checkpoint[var_name]


def is_main_process(): return True


def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)


def init_distributed_mode(args):
    if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:
        args.rank = int(os.environ["RANK"]); args.world_size = int(os.environ['WORLD_SIZE'])
    elif 'SLURM_PROCID' in os.environ:
        args.rank = int(os.environ['SLURM_PROCID'])
    else:
        print('Will run the code on one device.')
        args.rank, args.world_size = 0, 1
        return
    torch.distributed.init_process_group("gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
