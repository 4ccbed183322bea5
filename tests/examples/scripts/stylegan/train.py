"""Train a GAN."""
import os, re, json
import click
from training import training_loop


def init_dataset():
    return 256


@click.command()
@click.option('--outdir', help='Where to save the results', metavar='DIR', required=True)
@click.option('--kimg', help='Total training duration', type=int, default=60, show_default=True)
@click.option('--snap', help='How often to save snapshots', type=int, default=1, show_default=True)
@click.option('--resume', help='Resume from given network pickle', metavar='[PATH|URL]', type=str)
@click.option('-n', '--dry-run', help='Print training options and exit', is_flag=True)
def main(outdir, kimg, snap, resume, dry_run):
    prev_run_dirs = []
    if os.path.isdir(outdir):
        prev_run_dirs = [x for x in os.listdir(outdir) if os.path.isdir(os.path.join(outdir, x))]
    prev_run_ids = [re.match(r'^\d+', x) for x in prev_run_dirs]
    prev_run_ids = [int(x.group()) for x in prev_run_ids if x is not None]
    cur_run_id = max(prev_run_ids, default=-1) + 1
    run_dir = os.path.join(outdir, f'{cur_run_id:05d}-stylegan')
    assert not os.path.exists(run_dir)
    print('Creating output directory...')
    os.makedirs(run_dir)
    with open(os.path.join(run_dir, 'training_options.json'), 'wt') as f:
        json.dump(dict(kimg=kimg, snap=snap, resume=resume), f, indent=2)
    training_loop.training_loop(run_dir=run_dir, total_kimg=kimg, snap=snap, resume_pkl=resume)


if __name__ == "__main__":
    main()
