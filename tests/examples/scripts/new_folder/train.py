import argparse, os, pickle, time


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--save_dir", default="save", help="where to write")
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--resume", default="", help="path of a checkpoint")
    args = p.parse_args()
    os.makedirs(args.save_dir)  # never write over an earlier experiment
    start, w = 0, 1.0
    if args.resume:
        with open(args.resume, "rb") as f:
            state = pickle.load(f)
        w, start = state["w"], state["epoch"] + 1
    for epoch in range(start, args.epochs):
        w *= 0.9
        time.sleep(0.5)
        print(f"epoch {epoch} loss {w:.4f}", flush=True)
        with open(os.path.join(args.save_dir, f"epoch_{epoch}.pkl"), "wb") as f:
            pickle.dump({"w": w, "epoch": epoch}, f)


if __name__ == "__main__":
    main()
