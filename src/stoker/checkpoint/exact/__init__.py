"""What `exact: true` puts into the script's process: it keeps beside every file that the script saves what the script
forgets, and restores it when the script loads that file. Nothing here imports a framework, or is loaded without
`exact: true`.

The way of a save: `hooks` and `torchhooks` see it, `session` takes the states (`states`, `loaders`), `sidecar` writes
them. The way of a load: `session` reads them, `places` waits for the loop that the save was made in, and there they
are restored.
"""
