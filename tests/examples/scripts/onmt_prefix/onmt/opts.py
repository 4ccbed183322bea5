def train_opts(parser):
    group = parser.add_argument_group("General")
    group.add("--data", "-data", required=False, default="data/run/example", help="List of datasets") if hasattr(
        group, "add"
    ) else group.add_argument("--data", "-data", default="data/run/example")
    group.add_argument(
        "--save_model",
        "-save_model",
        default="model",
        help="Model filename (the model will be saved as <save_model>_N.pt where N is the number of steps",
    )
    group.add_argument(
        "--save_checkpoint_steps", "-save_checkpoint_steps", type=int, default=5, help="Save a checkpoint every X steps"
    )
    group.add_argument(
        "--train_from",
        "-train_from",
        default="",
        type=str,
        help="If training from a checkpoint then this is the path to the pretrained model's state_dict.",
    )
    group.add_argument("--train_steps", "-train_steps", default=80, type=int)
    group.add_argument("--report_every", default=1, type=int)
