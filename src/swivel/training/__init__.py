"""Training: objective, schedule, plan, loop, checkpoints; backends and distributed executors."""
