"""Run options, resource detection and estimates, progress events, signal handling and parallel map."""
