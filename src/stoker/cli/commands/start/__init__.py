"""Commands that start something: a job file, a plan, a run, a certification."""
