import argparse, glob, logging, os, os.path as osp, time
import torch, yaml


def parse_options(root_path):
    parser = argparse.ArgumentParser()
    parser.add_argument("-opt", type=str, required=True, help="Path to option YAML file.")
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none", help="job launcher")
    parser.add_argument("--auto_resume", action="store_true")
    parser.add_argument("--debug", action="store_true")
    args = parser.parse_args()
    with open(args.opt) as f:
        opt = yaml.safe_load(f)
    opt["auto_resume"] = args.auto_resume
    experiments_root = osp.join(root_path, "experiments", opt["name"])
    opt["path"]["experiments_root"] = experiments_root
    opt["path"]["models"] = osp.join(experiments_root, "models")
    opt["path"]["training_states"] = osp.join(experiments_root, "training_states")
    return opt, args


def load_resume_state(opt):
    resume_state_path = None
    if opt["auto_resume"]:
        state_path = osp.join("experiments", opt["name"], "training_states")
        if osp.isdir(state_path):
            states = glob.glob(osp.join(state_path, "*.state"))
            if len(states) != 0:
                states = [float(osp.basename(v).split(".state")[0]) for v in states]
                resume_state_path = osp.join(state_path, f"{max(states):.0f}.state")
                opt["path"]["resume_state"] = resume_state_path
    elif opt["path"].get("resume_state"):
        resume_state_path = opt["path"]["resume_state"]
    if resume_state_path is None:
        return None
    return torch.load(resume_state_path, map_location="cpu")


def train_pipeline(root_path):
    opt, args = parse_options(root_path)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s")
    logger = logging.getLogger("basicsr")
    resume_state = load_resume_state(opt)
    for d in ("models", "training_states"):
        os.makedirs(opt["path"][d], exist_ok=True)
    net_g = torch.nn.Linear(4, 4)
    optim = torch.optim.Adam(net_g.parameters())
    current_iter = 0
    if resume_state:
        current_iter = resume_state["iter"]
        optim.load_state_dict(resume_state["optimizers"])
        net_g.load_state_dict(torch.load(osp.join(opt["path"]["models"], f"net_g_{current_iter}.pth"))["params"])
        logger.info(f"Resuming training from epoch: 0, iter: {resume_state['iter']}.")
    while current_iter < opt["train"]["total_iter"]:
        current_iter += 1
        x = torch.randn(4, 4)
        loss = (net_g(x) - x).abs().mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        time.sleep(0.15)
        if current_iter % opt["logger"]["print_freq"] == 0:
            message = f"[{opt['name'][:5]}..][epoch:{0:3d}, iter:{current_iter:8,d}, lr:(1.000e-04,)] [eta: 0:00:20, time (data): 0.150 (0.001)] l_pix: {loss.item():.4e} "
            logger.info(message)
        if current_iter % opt["logger"]["save_checkpoint_freq"] == 0:
            logger.info("Saving models and training states.")
            torch.save({"params": net_g.state_dict()}, osp.join(opt["path"]["models"], f"net_g_{current_iter}.pth"))
            torch.save(
                {"iter": current_iter, "optimizers": optim.state_dict()},
                osp.join(opt["path"]["training_states"], f"{current_iter}.state"),
            )
    logger.info("End of training.")
    torch.save({"params": net_g.state_dict()}, osp.join(opt["path"]["models"], "net_g_latest.pth"))


if __name__ == "__main__":
    root_path = osp.abspath(osp.join(__file__, osp.pardir, osp.pardir))
    train_pipeline(root_path)
