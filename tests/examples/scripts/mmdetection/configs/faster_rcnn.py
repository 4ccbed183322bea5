model = dict(type="FasterRCNN")
total_epochs = 40
checkpoint_config = dict(interval=1)
work_dir = None
