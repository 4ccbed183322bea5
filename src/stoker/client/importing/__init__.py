"""Job files from what users have: one file per format. Pure: text in, a job file and what it cannot say out; nothing is
run and nothing is written."""
