import json, os, pickle, time
import torch


def training_loop(run_dir='.', total_kimg=25, snap=1, resume_pkl=None):
    torch.manual_seed(0)
    G = torch.nn.Linear(4, 4)
    opt = torch.optim.Adam(G.parameters(), lr=0.01)
    cur_nimg = 0
    if resume_pkl is not None:
        print(f'Resuming from "{resume_pkl}"')
        with open(resume_pkl, 'rb') as f:
            data = pickle.load(f)
        G.load_state_dict(data['G']); cur_nimg = data['nimg']
    stats = open(os.path.join(run_dir, 'stats.jsonl'), 'wt')
    while cur_nimg < total_kimg * 1000:
        loss = G(torch.randn(8, 4)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        cur_nimg += 1000
        time.sleep(0.3)
        print(f"tick {cur_nimg // 1000:<5d} kimg {cur_nimg / 1e3:<8.1f} time 1m 02s       sec/tick 4.5     sec/kimg 12.43   maintenance 0.0    cpumem 2.13   gpumem 9.34", flush=True)
        stats.write(json.dumps({'Loss/G/loss': {'num': 8, 'mean': loss.item(), 'std': 0.0}, 'timestamp': time.time()}) + '\n'); stats.flush()
        with open(os.path.join(run_dir, f'network-snapshot-{cur_nimg // 1000:06d}.pkl'), 'wb') as f:
            pickle.dump(dict(G=G.state_dict(), nimg=cur_nimg), f)
        with open(os.path.join(run_dir, 'metric-fid50k_full.jsonl'), 'at') as f:
            f.write(json.dumps({'results': {'fid50k_full': 100 / cur_nimg}, 'metric': 'fid50k_full', 'snapshot_pkl': f'network-snapshot-{cur_nimg // 1000:06d}.pkl'}) + '\n')
    print('Exiting...')
