"""Training: objective, schedule, plan, loop and checkpoints, with backends and distributed executors."""
