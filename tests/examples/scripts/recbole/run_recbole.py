import argparse
from recsys.quick_start import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", "-m", type=str, default="BPR", help="name of models")
    parser.add_argument("--dataset", "-d", type=str, default="ml-100k", help="name of datasets")
    parser.add_argument("--config_files", type=str, default=None, help="config files")
    parser.add_argument("--load_model", type=str, default=None, help="checkpoint to continue from")
    args, _ = parser.parse_known_args()
    run(model=args.model, dataset=args.dataset, saved=args.load_model)
