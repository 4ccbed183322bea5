class HP(dict):
    __getattr__ = dict.__getitem__


def create_hparams(hparams_string=None, verbose=False):
    return HP(
        epochs=3, iters_per_checkpoint=5, seed=1234, learning_rate=1e-3, use_saved_learning_rate=False, batch_size=4
    )
