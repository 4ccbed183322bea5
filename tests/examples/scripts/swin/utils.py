import os
import torch


def load_checkpoint(config, model, optimizer, logger):
    logger.info(f"==============> Resuming form {config.MODEL.RESUME}....................")
    checkpoint = torch.load(config.MODEL.RESUME, map_location='cpu', weights_only=False)
    model.load_state_dict(checkpoint['model'], strict=False)
    optimizer.load_state_dict(checkpoint['optimizer'])
    config.TRAIN.START_EPOCH = checkpoint['epoch'] + 1
    return checkpoint.get('max_accuracy', 0.0)


def save_checkpoint(config, epoch, model, max_accuracy, optimizer, logger):
    save_state = {'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'max_accuracy': max_accuracy,
                  'epoch': epoch}
    save_path = os.path.join(config.OUTPUT, f'ckpt_epoch_{epoch}.pth')
    logger.info(f"{save_path} saving......")
    torch.save(save_state, save_path)
    logger.info(f"{save_path} saved !!!")


def auto_resume_helper(output_dir, logger):
    checkpoints = os.listdir(output_dir)
    checkpoints = [ckpt for ckpt in checkpoints if ckpt.endswith('pth')]
    print(f"All checkpoints founded in {output_dir}: {checkpoints}")
    if len(checkpoints) > 0:
        return max([os.path.join(output_dir, d) for d in checkpoints], key=os.path.getmtime)
    return None
