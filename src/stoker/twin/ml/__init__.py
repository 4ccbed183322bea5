"""Azure Machine Learning in the twin: workspaces, assets, compute clusters whose nodes are machines, and command jobs.
Nothing here may know of Stoker's own agent: a job's command is somebody's."""

NAMESPACE = "Microsoft.MachineLearningServices"
WORKSPACES = f"{NAMESPACE}/workspaces"
COMPUTES = f"{WORKSPACES}/computes"
DATASTORES = f"{WORKSPACES}/datastores"
JOBS = f"{WORKSPACES}/jobs"
ASSETS = ("environments", "codes", "data")  # each with versions

BLOBS, ARTIFACTS = "workspaceblobstore", "workspaceartifactstore"  # the datastores of every workspace
