"""After the shape of nanochat: it writes below a folder of its own in ~/.cache, and resumes from the number of a step."""
import os
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import argparse
import time
import torch
from nanochat.common import print0, get_base_dir, is_ddp
from nanochat.checkpoint_manager import save_checkpoint, load_checkpoint

parser = argparse.ArgumentParser(description="Pretrain base model")
parser.add_argument("--run", type=str, default="dummy", help="wandb run name ('dummy' disables wandb logging)")
parser.add_argument("--device-type", type=str, default="", help="cuda|cpu|mps (empty = autodetect)")
parser.add_argument("--depth", type=int, default=20, help="depth of the Transformer model")
parser.add_argument("--num-iterations", type=int, default=300, help="explicit number of optimization steps (-1 = disable)")
parser.add_argument("--resume-from-step", type=int, default=-1, help="resume training from this step (-1 = disable)")
parser.add_argument("--eval-every", type=int, default=250, help="evaluate val bpb every N steps (-1 = disable)")
parser.add_argument("--save-every", type=int, default=10, help="save checkpoints every N steps (-1 = only at end)")
parser.add_argument("--model-tag", type=str, default=None, help="override model tag for checkpoint directory name")
args = parser.parse_args()

torch.manual_seed(42)
base_dir = get_base_dir()
output_dirname = args.model_tag if args.model_tag else f"d{args.depth}"
checkpoint_dir = os.path.join(base_dir, "base_checkpoints", output_dirname)
resuming = args.resume_from_step != -1
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if resuming:
    print0(f"Resuming optimization from step {args.resume_from_step}")
    model_data, optimizer_data, meta_data = load_checkpoint(checkpoint_dir, args.resume_from_step, "cpu", load_optimizer=True)
    model.load_state_dict(model_data, strict=True)
    optimizer.load_state_dict(optimizer_data)
step = 0 if not resuming else meta_data["step"]
num_iterations = args.num_iterations
smooth = 0
while True:
    last_step = step == num_iterations
    if last_step or (step > 0 and step != args.resume_from_step and args.save_every > 0 and step % args.save_every == 0):
        save_checkpoint(checkpoint_dir, step, model.state_dict(), optimizer.state_dict(), {"step": step, "user_config": vars(args)}, rank=0)
    if last_step:
        break
    t0 = time.time()
    x = torch.randn(4, 8)
    loss = (model(x) - x).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    time.sleep(0.15)
    dt = time.time() - t0
    pct_done = 100 * step / num_iterations
    print0(f"step {step:05d}/{num_iterations:05d} ({pct_done:.2f}%) | loss: {loss.item():.6f} | lrm: {1.0:.2f} | dt: {dt * 1000:.2f}ms | tok/sec: {1234:,} | mfu: {0.12:.2f} | total time: {dt/60:.2f}m")
    step += 1
print0(f"Peak memory usage: 0.00MiB")
